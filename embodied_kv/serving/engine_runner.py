"""An engine of this process and what keeps it going: its thread, warm-up, compiler and listeners.

Knows how an engine is built, measured and ended. Does not know nodes, clients or sessions.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from functools import cached_property

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

Listener = Callable[[Sequence[TextDelta]], object]
FLUSH = 1.0  # s that `flush` waits for the last words
MEASURING = 'measuring'


class EngineRunner:
    """A warm engine on its thread, until `stop`. Use it as a context.

    What is not compiled yet is compiled by another process, unless `hold_compiler` forbids it.

    period: s between two frames of a robot; None: what a chunk lasts. say: takes a line for the
    user. tokens: decoded since the start. Raises ValueError for parameters that no engine can
    have.
    """

    def __init__(
        self,
        policy: Policy,
        config: EngineConfig,
        period: float | None = None,
        say: Callable[[str], object] = lambda line: None,
    ) -> None:
        self.tokens = 0
        self._counted: dict[int, int] = {}  # live stream -> its tokens in `tokens`
        self._changing = threading.Lock()  # held to replace the listeners, or what holds
        self._listeners: tuple[Listener, ...] = ()
        self._holds: frozenset[str] = frozenset()  # what forbids to compile
        self._faults = Throttled(logging.getLogger(__name__).error)
        lasts = policy.config.chunk_size * policy.config.action_dt
        self.engine = Engine(policy, config, lasts if period is None else period, say=say)
        self.device = EngineThread(self.engine, self._on_deltas)
        self.device.start()
        try:
            self.device.call(lambda: warm_up(self.engine)).result()
        except BaseException:
            self.device.stop()
            raise
        self.compiling = self.engine.graphs.compile_later(say)
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

    # ------------------------------------------------------------------ the engine

    @property
    def model(self) -> ModelConfig:
        """The dimensions of its model."""
        return self.engine.policy.config

    @property
    def memory_device(self) -> torch.device:
        """On which capsules are kept that need not be copied."""
        return self.engine.policy.model.device

    @property
    def kv_budget(self) -> KvBudget:
        """The budget of all KV on its device."""
        return self.engine.kv.budget

    @cached_property
    def fingerprint(self) -> str:
        """Of the engine; reads every weight, once."""
        return fingerprint(self.engine)

    def profile(self, repeats: int = REPEATS) -> Profile:
        """Measure batches of each size on the idle engine. repeats: of each size."""
        self.hold_compiler(MEASURING, True)
        try:
            seconds = self.device.call(lambda: batch_seconds(self.engine, repeats)).result()
        finally:
            self.hold_compiler(MEASURING, False)
        return profile_of(self.model, seconds)

    def hold_compiler(self, reason: str, holds: bool) -> None:
        """Forbid to compile for this reason, or no longer; one reason of several is enough."""
        with self._changing:
            self._holds = self._holds | {reason} if holds else self._holds - {reason}
            if self.compiling is not None:
                (self.compiling.pause if self._holds else self.compiling.resume)()

    # ------------------------------------------------------------------ new text

    def listen(self, listener: Listener) -> None:
        """Call it with all deltas of all streams, on the engine thread; it must be quick."""
        with self._changing:
            self._listeners += (listener,)

    def unlisten(self, listener: Listener) -> None:
        """Call it no longer."""
        with self._changing:
            self._listeners = tuple(known for known in self._listeners if known != listener)

    def flush(self) -> None:
        """Hand out now the last deltas of streams that ended. Not on the engine thread.

        An engine thread that is busy for longer than FLUSH hands them out later.
        """
        with contextlib.suppress(TimeoutError):
            self.device.call(lambda: self._on_deltas(self.engine.deltas())).result(FLUSH)

    def _on_deltas(self, deltas: Sequence[TextDelta]) -> None:
        for delta in deltas:
            self.tokens += delta.tokens - self._counted.pop(delta.stream, 0)
            if not delta.finished:
                self._counted[delta.stream] = delta.tokens
        for listener in self._listeners:
            try:
                listener(deltas)
            except Exception as error:  # not the engine's fault: the robot goes on acting
                text = f'a listener of language failed\n{trace(error)}'
                self._faults(type(error).__name__, text)
