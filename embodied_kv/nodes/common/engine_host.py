"""The engine of this process: built once, at the first configure, and shared by its nodes.

The process owns the engine; a node releases only its leases and streams.
"""

from __future__ import annotations

import gc
import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial

from embodied_kv.engine_config import EngineConfig
from embodied_kv.kv.handle import KvHandle
from embodied_kv.model.policy import Policy
from embodied_kv.nodes.common.parameters import SuiteParams
from embodied_kv.serving.engine_runner import EngineRunner, Feed
from embodied_kv.serving.load import load_policy
from embodied_kv.session.engine_part import EnginePart
from embodied_kv.session.frame_memory_part import FrameMemoryPart
from embodied_kv.session.robot_session import RobotSession

Say = Callable[[str], object]
WARMING = 'warming up the engine'
LATER = (
    'computations that are not compiled yet run eagerly; they are compiled in the background '
    'while no arm is armed, for the next start (python -m embodied_kv.nodes.compile: at once)'
)


class EngineHost(EngineRunner):
    """The engine of this process, with the sessions and the frames of its robots."""

    _lock = threading.Lock()
    _shared: EngineHost | None = None
    _doing: tuple[str, float] | None = None  # step of the build under way, and when it began (s)

    @classmethod
    def share(
        cls,
        suite: SuiteParams,
        config: EngineConfig,
        say: Say,
        warn: Say,
        defers_traces: bool = True,
    ) -> EngineHost:
        """Return the host of this process, which is built at the first call.

        Args:
            suite, config: Parameters of the engine.
            say, warn: Receive a line for the log.
            defers_traces: As for `EngineRunner`.

        Raises:
            ValueError: if the engine was built from other parameters, or cannot be built.
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
                    cls._shared = cls(policy, config, suite.period, wish, say, defers_traces)
                finally:
                    cls._doing = None
            for name, value in wish.items():
                if (there := cls._shared.identity[name]) != value:
                    raise ValueError(
                        f'{name} must be {there!r}, as the engine of this process was built (got '
                        f'{value!r}); give all nodes of a process the same value'
                    )
            return cls._shared

    @classmethod
    def doing(cls) -> str:
        """Return the step of the build in progress and its age; '' without one. Thread-safe."""
        doing = cls._doing
        return f'{doing[0]}, {time.monotonic() - doing[1]:.0f} s' if doing else ''

    @classmethod
    def _begin(cls, step: str) -> None:
        cls._doing = step, time.monotonic()

    @classmethod
    def close(cls) -> None:
        """Stop the engine thread and free the engine, because the process ends."""
        with cls._lock:
            host, cls._shared = cls._shared, None
        if host is not None:
            host.stop()
            gc.unfreeze()

    def __init__(
        self,
        policy: Policy,
        config: EngineConfig,
        period: float,
        identity: dict,
        say: Say,
        defers_traces: bool = True,
    ) -> None:
        began = time.monotonic()
        self.identity = identity
        # robot -> its frame numbers
        self.sequences: defaultdict[str, Iterator[int]] = defaultdict(partial(itertools.count, 1))
        self._feeds: dict[str, Feed[KvHandle]] = {}  # by robot
        self._sessions: dict[str, RobotSession] = {}  # by robot

        def say_step(line: str) -> None:
            if self._doing:  # else the engine is ready
                compiling = line.startswith('compiling ')
                self._begin(line.partition(', once')[0] if compiling else WARMING)
            say(line)

        super().__init__(policy, config, period, say_step, defers_traces)
        if self.compiling is not None:
            say(LATER)
        gc.collect()
        gc.freeze()  # keeps the objects that exist now out of later collections
        stats, costs = self.engine.kv.stats(), self.engine.latency
        say(
            f'engine ready in {time.monotonic() - began:.1f} s: {self.engine.policy.config.name}, '
            f'{stats.rows} rows, {stats.bytes / 2**20:.0f} MiB of cache; '
            f'prefill {costs.estimate("prefill") * 1e3:.1f} ms, Euler step '
            f'{costs.estimate("denoise_step") * 1e3:.1f} ms, decode step '
            f'{costs.estimate("decode") * 1e3:.1f} ms'
        )

    def session(self, robot: str) -> RobotSession:
        """Return the session of a robot, one for all its nodes."""
        with self._lock:
            if robot not in self._sessions:
                part = EnginePart(self.engine, robot, freezes_frame=False)
                session = RobotSession(part, None, self.device.call)
                if self.engine.config.memory_rows:
                    session.register(FrameMemoryPart(self.engine, robot))
                self._sessions[robot] = session
            return self._sessions[robot]

    def frames(self, robot: str) -> Feed[KvHandle]:
        """Return the feed of the handles of a robot's new frames, one for all its nodes.

        A handle is given as soon as its row is written, so that work which a listener submits to
        the engine thread begins next. The topic `kv_handle` carries the same handles.
        """
        with self._lock:
            return self._feeds.setdefault(robot, Feed('a reader of frames'))


def _identity(suite: SuiteParams, config: EngineConfig) -> dict[str, object]:
    """Return the parameters that an engine is built from, by name."""
    engine = {f'engine.{name}': value for name, value in asdict(config).items()}
    shared = ('contract', 'preset', 'checkpoint', 'control_frequency')
    return {name: getattr(suite, name) for name in shared} | engine
