"""What the nodes of a robot without an engine share."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import RLock
from typing import ClassVar, TypeVar

from embodied_kv.config import ModelConfig
from embodied_kv.serving.remote_policy.remote_part import RemotePart
from embodied_kv.session.robot_session import RobotSession

T = TypeVar('T')


class RemoteHost:
    """The dimensions of a policy server's model, and the sessions of this process.

    fingerprint, kv_budget, memory_device: as of an `EngineHost`. The capsules of a server state
    its fingerprint themselves; no KV of this process has a budget.
    """

    fingerprint, kv_budget, memory_device = 'policy server', None, 'cpu'
    _sessions: ClassVar[dict[str, RobotSession]] = {}  # by robot
    _lock: ClassVar[RLock] = RLock()

    def __init__(self, model: ModelConfig) -> None:
        self.model = model

    def session(self, robot: str) -> RobotSession:
        """Return the session of a robot, one for all its nodes."""
        with self._lock:
            if robot not in self._sessions:
                self._sessions[robot] = RobotSession(RemotePart(robot), None, _Caller())
            return self._sessions[robot]


class _Caller:
    """Runs work on the thread that asks for it, one piece at a time: no engine's thread exists."""

    def __init__(self) -> None:
        self._lock = RLock()

    def __call__(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            future.set_result(work())
        return future
