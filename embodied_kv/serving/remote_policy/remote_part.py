"""The state of a robot at its policy server as a part of the robot's capsules.

The part uses the requests `snapshot`, `export`, `import` and `restore`; each call waits for the
server. `RemoteHost` has the sessions of a process whose robots have no model.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import Future
from threading import RLock
from typing import ClassVar, TypeVar, cast

import torch

from embodied_kv.capsule.capsule import CapsuleError, FrozenPart
from embodied_kv.config import ModelConfig
from embodied_kv.errors import CodedError, ErrorCode
from embodied_kv.kv.decode_stream import DecodeStream
from embodied_kv.serving.remote_policy.connection import RemotePolicy, Reply, ask
from embodied_kv.session.engine_part import EnginePart
from embodied_kv.session.robot_session import RobotSession

SECONDS = 30.0  # maximum for a capsule

T = TypeVar('T')


class RemotePart:
    """A part that holds the bytes of a capsule of the server.

    The robot's capsule therefore outlives the server, and any server whose engine has the same
    fingerprint can resume it. Text streams are not continued.
    """

    name, depth = 'server', 'planner'
    can_fork, streams_max = False, 0
    freezes_frame = True  # by the server

    def __init__(self, robot: str) -> None:
        self.robot, self.process_id = robot, uuid.uuid4().hex
        self.committed = self.stamp = 0  # requests so far, and ns of the newest observation
        self._policy: RemotePolicy | None = None

    def attach(self, policy: RemotePolicy | None) -> None:
        """Use a connection from now on; None for no connection."""
        self._policy = policy

    def asked(self, stamp: int) -> None:
        """Count a request about an observation of this stamp (ns)."""
        self.committed, self.stamp = self.committed + 1, stamp

    def streams(self) -> list[DecodeStream]:
        """Return no streams, because they are at the server."""
        return []

    def finish(self) -> None:
        """Do nothing, because no device work is launched here."""

    def freeze(self) -> FrozenPart:
        """Return a part with the tensor 'capsule', uint8 [bytes]. Raises CapsuleError."""
        name = self._call({'endpoint': 'snapshot'}).get('name')
        data = self._call({'endpoint': 'export', 'name': name}).get('capsule')
        if not isinstance(data, bytes) or not data:
            raise CapsuleError('the policy server returned no capsule', ErrorCode.UNAVAILABLE)
        return FrozenPart({'capsule': torch.frombuffer(bytearray(data), dtype=torch.uint8)}, {})

    def check_resumable(self, frozen: FrozenPart, branches: int = 1) -> None:
        data = frozen.tensors.get('capsule')
        if data is None or data.dtype != torch.uint8 or data.dim() != 1 or not len(data):
            raise CapsuleError(
                'the capsule must have a part of a policy server (got one of a local engine)',
                ErrorCode.MISMATCH,
            )

    def resume(self, frozen: FrozenPart) -> None:
        data, name = frozen.tensors['capsule'].cpu().numpy().tobytes(), uuid.uuid4().hex[:16]
        self._call({'endpoint': 'import', 'capsule': data, 'name': name})
        self._call({'endpoint': 'restore', 'name': name})

    def _call(self, request: dict[str, object]) -> Reply:
        try:
            return ask(self._policy, 'exports', request, SECONDS)
        except CodedError as error:
            raise CapsuleError(str(error), error.code) from error


class RemoteHost:
    """The dimensions of a policy server's model, and the sessions of this process.

    fingerprint, kv_budget, memory_device: as in `EngineHost`. The capsules of a server contain its
    fingerprint; this process has no KV budget.
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
                part = cast(EnginePart, RemotePart(robot))  # has what is used without forks
                self._sessions[robot] = RobotSession(part, None, _Caller())
            return self._sessions[robot]


class _Caller:
    """Runs work on the calling thread, one piece at a time, because no engine thread exists."""

    def __init__(self) -> None:
        self._lock = RLock()

    def __call__(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            future.set_result(work())
        return future
