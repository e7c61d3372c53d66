"""An engine in this process with its thread, warm-up, compiler and listeners."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import cached_property
from typing import Generic, TypeVar

import torch

from embodied_kv.config import ModelConfig
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.engine_thread import EngineThread
from embodied_kv.engine.fingerprint import fingerprint
from embodied_kv.engine.warmup import warm_up
from embodied_kv.engine_config import EngineConfig
from embodied_kv.fleet.profile import Profile
from embodied_kv.kv.budget import KvBudget
from embodied_kv.model.policy import Policy
from embodied_kv.serving.batch import REPEATS, batch_seconds, profile_of
from embodied_kv.text import trace
from embodied_kv.throttle import Throttled
from embodied_kv.types import TextDelta

T = TypeVar('T')
FLUSH = 1.0  # s; maximum wait of `flush`
MEASURING = 'measuring'


class Feed(Generic[T]):
    """Passes values of the engine thread to listeners, in order. Thread-safe.

    A listener must be quick, because the engine thread calls it; its exceptions are logged.

    Args:
        reader: Description of a listener, for the log.
    """

    def __init__(self, reader: str) -> None:
        self._reader, self._lock = reader, threading.RLock()
        self._listeners: tuple[Callable[[T], object], ...] = ()
        self._faults = Throttled(logging.getLogger(__name__).error)

    def listen(self, listener: Callable[[T], object], first: bool = False) -> None:
        """Call a listener with each value from now on. first: before all other listeners."""
        with self._lock:
            self.unlisten(listener)
            known = self._listeners
            self._listeners = (listener, *known) if first else (*known, listener)

    def unlisten(self, listener: Callable[[T], object]) -> None:
        """Stop calling a listener; a call in progress has ended when this returns."""
        with self._lock:
            self._listeners = tuple(known for known in self._listeners if known != listener)

    def give(self, value: T) -> None:
        """Call all listeners with a value."""
        with self._lock:
            for listener in self._listeners:
                try:
                    listener(value)
                except Exception as error:  # of one listener; the others still get the value
                    text = f'{self._reader} failed\n{trace(error)}'
                    self._faults(type(error).__name__, text)


class EngineRunner:
    """Runs a warmed-up engine on its thread until `stop`; also a context manager.

    Another process compiles graphs that are not compiled yet, unless `hold_compiler` forbids it.
    `deltas` passes on all text deltas. `tokens` counts the tokens decoded since the start.

    Args:
        policy: The loaded policy.
        config: The engine's configuration. Raises ValueError for invalid values.
        period: Seconds between two frames of a robot; None for the duration of a chunk.
        say: Receives a line for the user.
        defers_traces: Trace uncompiled graphs (seconds each) between two steps while nothing
            holds the compiler; False traces them before the start.
    """

    def __init__(
        self,
        policy: Policy,
        config: EngineConfig,
        period: float | None = None,
        say: Callable[[str], object] = lambda line: None,
        defers_traces: bool = False,
    ) -> None:
        self.tokens = 0
        self._counted: dict[int, int] = {}  # live stream -> its tokens in `tokens`
        self.deltas: Feed[Sequence[TextDelta]] = Feed('a listener of text deltas')
        self._changing = threading.Lock()  # guards `_holds`
        self._holds: frozenset[str] = frozenset()  # reasons not to compile
        lasts = policy.config.chunk_size * policy.config.action_dt
        period = lasts if period is None else period
        self.engine = Engine(policy, config, period, say=say, defers_traces=defers_traces)
        self.device = EngineThread(self.engine, self._on_deltas)
        self.device.start()
        try:
            self.device.call(lambda: warm_up(self.engine)).result()
        except BaseException:
            self.device.stop()
            raise
        self.compiling = self.engine.graphs.compile_later(
            say, lambda work: self.device.background(work).result()
        )
        if self.compiling is not None:
            self.compiling.resume()

    def __enter__(self) -> EngineRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the compiler and the engine thread."""
        if self.compiling is not None:
            self.compiling.stop()
        self.device.stop()

    @property
    def model(self) -> ModelConfig:
        return self.engine.policy.config

    @property
    def memory_device(self) -> torch.device:
        """The device of the model, on which capsules are kept without a copy."""
        return self.engine.policy.model.device

    @property
    def kv_budget(self) -> KvBudget:
        return self.engine.kv.budget

    @cached_property
    def fingerprint(self) -> str:
        """The fingerprint of the engine; reads each weight once."""
        return fingerprint(self.engine)

    def profile(self, repeats: int = REPEATS) -> Profile:
        """Return the profile of the idle engine, measured `repeats` times for each batch size."""
        self.hold_compiler(MEASURING, True)
        try:
            seconds = self.device.call(lambda: batch_seconds(self.engine, repeats)).result()
        finally:
            self.hold_compiler(MEASURING, False)
        return profile_of(self.model, seconds)

    def hold_compiler(self, reason: str, holds: bool) -> None:
        """Add or remove a reason not to compile; the compiler runs while there is none."""
        with self._changing:
            self._holds = self._holds | {reason} if holds else self._holds - {reason}
            if self.compiling is not None:
                (self.compiling.pause if self._holds else self.compiling.resume)()

    @property
    def is_held(self) -> bool:
        """Return whether there is a reason not to compile, such as an armed arm."""
        return bool(self._holds)

    def flush(self) -> None:
        """Pass the last deltas of ended streams to the listeners.

        Must not be called on the engine thread. If that thread is busy for longer than FLUSH, the
        deltas follow later.
        """
        with contextlib.suppress(FutureTimeoutError):
            self.device.call(lambda: self._on_deltas(self.engine.deltas())).result(FLUSH)

    def _on_deltas(self, deltas: Sequence[TextDelta]) -> None:
        for delta in deltas:
            self.tokens += delta.tokens - self._counted.pop(delta.stream, 0)
            if not delta.finished:
                self._counted[delta.stream] = delta.tokens
        self.deltas.give(deltas)
