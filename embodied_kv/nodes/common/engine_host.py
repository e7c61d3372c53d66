"""The engine of this process: built once, at the first configure, and shared by its nodes.

The process owns the engine, not a node: a node gives back its leases and streams and nothing more.
Knows which parameters an engine was built from. Does not know topics.
"""

from __future__ import annotations

import gc
import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.policy import Policy
from embodied_kv.nodes.common.handle_feed import HandleFeed
from embodied_kv.nodes.common.parameters import SuiteParams
from embodied_kv.serving.engine_runner import EngineRunner
from embodied_kv.serving.load import load_policy
from embodied_kv.session.engine_part import EnginePart
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
            host.stop()
            gc.unfreeze()

    def __init__(
        self, policy: Policy, config: EngineConfig, period: float, identity: dict, say: Say
    ) -> None:
        began = time.monotonic()
        self.identity = identity
        self.sequences = defaultdict(partial(itertools.count, 1))  # robot -> its frame numbers
        self._feeds: dict[str, HandleFeed] = {}  # by robot
        self._sessions: dict[str, RobotSession] = {}  # by robot

        def say_step(line: str) -> None:
            if self._doing:  # else the engine is ready
                compiling = line.startswith('compiling ')
                self._begin(line.partition(', once')[0] if compiling else WARMING)
            say(line)

        super().__init__(policy, config, period, say_step)
        if self.compiling is not None:
            say(LATER)
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

    def session(self, robot: str) -> RobotSession:
        """A robot's, one for all its nodes; it has no registry before `set_registry`."""
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
        self.hold_compiler(robot, armed)


def _identity(suite: SuiteParams, config: EngineConfig) -> dict[str, object]:
    """By parameter name, what an engine is built from."""
    engine = {f'engine.{name}': value for name, value in asdict(config).items()}
    shared = ('contract', 'preset', 'checkpoint', 'rate')
    return {name: getattr(suite, name) for name in shared} | engine
