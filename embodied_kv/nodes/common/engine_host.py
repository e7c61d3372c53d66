"""The engine of this process: built once, at the first configure, and shared by its nodes.

The process owns the engine, not a node: a node gives back its leases and streams and nothing more.
Knows which parameters an engine was built from. Does not know topics.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cached_property, partial

import torch

from embodied_kv.config import ModelConfig
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.fingerprint import fingerprint
from embodied_kv.engine.loop import DeviceThread
from embodied_kv.engine.warmup import warm_up
from embodied_kv.engine_config import EngineConfig
from embodied_kv.kv.plane import Plane
from embodied_kv.model.policy import Policy
from embodied_kv.nodes.common.handle_feed import HandleFeed
from embodied_kv.nodes.common.parameters import SuiteParams
from embodied_kv.serving.load import load_policy
from embodied_kv.session.engine_part import EnginePart
from embodied_kv.session.robot_session import RobotSession
from embodied_kv.text import trace
from embodied_kv.throttle import Throttled
from embodied_kv.types import TextDelta

Listener = Callable[[Sequence[TextDelta]], None]
Say = Callable[[str], object]
WARMING = 'warming up the engine'
LATER = (
    'computations that are not compiled yet run eagerly; they are compiled in the background '
    'while no arm is armed, for the next start (python -m embodied_kv.nodes.compile: at once)'
)
FLUSH = 1.0  # s that a node waits, at its end, for the last words


class EngineHost:
    """An engine, its device thread, and who listens to what language says."""

    _lock = threading.Lock()
    _shared: EngineHost | None = None
    _doing: tuple[str, float] | None = None  # step of the build under way, and when it began (s)

    @classmethod
    def share(cls, suite: SuiteParams, config: EngineConfig, say: Say, warn: Say) -> EngineHost:
        """The host of this process; built if there is none yet.

        say, warn: take a line for the user. Raises ValueError where the engine that there is was
        built from other parameters, or cannot be built from these.
        """
        with cls._lock:
            wish = _identity(suite, config)
            if cls._shared is None:
                try:
                    cls._begin('loading the weights')
                    policy = load_policy(
                        suite.embodiment(), suite.preset, suite.checkpoint, config, say, warn
                    )
                    cls._begin(WARMING)
                    cls._shared = cls(policy, config, suite.period, wish, say)
                finally:
                    cls._doing = None
            for name, value in wish.items():
                if (there := cls._shared.identity[name]) != value:
                    raise ValueError(
                        f'{name} is {value!r}, but the engine of this process was built with '
                        f'{there!r}: give all nodes of a process the same'
                    )
            return cls._shared

    @classmethod
    def doing(cls) -> str:
        """Return the step of the build under way and its age; '' if nothing is built.

        From any thread.
        """
        doing = cls._doing
        return f'{doing[0]}, {time.monotonic() - doing[1]:.0f} s' if doing else ''

    @classmethod
    def _begin(cls, step: str) -> None:
        cls._doing = step, time.monotonic()

    @classmethod
    def close(cls) -> None:
        """Stop the device thread and drop the engine: the process ends."""
        with cls._lock:
            host, cls._shared = cls._shared, None
        if host is not None:
            if host.compiling is not None:
                host.compiling.stop()
            host.device.stop()
            gc.unfreeze()

    def __init__(
        self, policy: Policy, config: EngineConfig, period: float, identity: dict, say: Say
    ) -> None:
        began = time.monotonic()
        self.identity = identity
        self.sequences = defaultdict(partial(itertools.count, 1))  # robot -> its frame numbers
        self._feeds: dict[str, HandleFeed] = {}  # by robot
        self.tokens = 0  # said by language since the start
        self._counted: dict[int, int] = {}  # live stream -> its tokens in `tokens`
        self._listeners: tuple[Listener, ...] = ()
        self._faults = Throttled(logging.getLogger(__name__).error)
        self._sessions: dict[str, RobotSession] = {}  # by robot

        def say_step(line: str) -> None:
            if self._doing:  # else the engine is ready
                compiling = line.startswith('compiling ')
                self._begin(line.partition(', once')[0] if compiling else WARMING)
            say(line)

        self.engine = Engine(policy, config, period, say=say_step)
        self.device = DeviceThread(self.engine, self._on_deltas)
        self.device.start()
        try:
            self.device.call(lambda: warm_up(self.engine)).result()
        except BaseException:
            self.device.stop()
            raise
        self._arming, self._armed = threading.Lock(), frozenset()  # robots
        self.compiling = self.engine.graphs.compile_later(say)
        if self.compiling is not None:
            say(LATER)
            self.compiling.resume()
        gc.collect()
        gc.freeze()  # what lives now lives on: no collection has to look at it again
        stats, costs = self.engine.kv.stats(), self.engine.costs
        say(
            f'engine ready in {time.monotonic() - began:.1f} s: {self.engine.policy.config.name}, '
            f'{stats.rows} rows, {stats.bytes / 2**20:.0f} MiB of cache; '
            f'prefill {costs.estimate("prefill") * 1e3:.1f} ms, Euler step '
            f'{costs.estimate("denoise_step") * 1e3:.1f} ms, decode step '
            f'{costs.estimate("decode") * 1e3:.1f} ms'
        )

    @property
    def model(self) -> ModelConfig:
        """The dimensions of its model."""
        return self.engine.policy.config

    @property
    def memory_device(self) -> torch.device:
        """On which capsules are kept that need not be copied."""
        return self.engine.policy.model.device

    @property
    def plane(self) -> Plane:
        """The budget of all KV on its device."""
        return self.engine.kv.plane

    @cached_property
    def fingerprint(self) -> str:
        """Of the engine; reads every weight, once."""
        return fingerprint(self.engine)

    def session(self, robot: str) -> RobotSession:
        """A robot's, one for all its nodes; it has no registry before `keep_in`."""
        with self._lock:
            if robot not in self._sessions:
                part = EnginePart(self.engine, robot)
                new = RobotSession(part, None, self.device.call)
                self._sessions[robot] = new
            return self._sessions[robot]

    def frames(self, robot: str) -> HandleFeed:
        """The handles of a robot's frames, for all its nodes."""
        with self._lock:
            return self._feeds.setdefault(robot, HandleFeed())

    def arms(self, robot: str, armed: bool) -> None:
        """Note whether the arm of a robot is armed: nothing is compiled while one is."""
        with self._arming:
            self._armed = self._armed | {robot} if armed else self._armed - {robot}
            if self.compiling is not None:
                (self.compiling.pause if self._armed else self.compiling.resume)()

    def listen(self, listener: Listener) -> None:
        """Call it with all deltas of all streams, on the device thread; it must be quick."""
        with self._lock:
            self._listeners += (listener,)

    def unlisten(self, listener: Listener) -> None:
        with self._lock:
            self._listeners = tuple(known for known in self._listeners if known != listener)

    def flush(self) -> None:
        """Hand out now the last deltas of streams that ended. Not on the device thread.

        A device thread that is busy for longer than FLUSH hands them out later.
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


def _identity(suite: SuiteParams, config: EngineConfig) -> dict[str, object]:
    """By parameter name, what an engine is built from."""
    engine = {f'engine.{name}': value for name, value in asdict(config).items()}
    shared = ('contract', 'preset', 'checkpoint', 'rate')
    return {name: getattr(suite, name) for name in shared} | engine
