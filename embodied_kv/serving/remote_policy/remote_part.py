"""What a policy server computes for a robot, frozen and resumed: a part of the robot's capsules.

Knows the requests `snapshot`, `export`, `import` and `restore`. Does not know what a capsule of
the server holds. Each call waits for the server.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import torch

from embodied_kv.capsule.capsule import CapsuleError, FrozenPart
from embodied_kv.errors import CodedError, ErrorCode
from embodied_kv.kv.decode_stream import DecodeStream
from embodied_kv.serving.remote_policy.answered import answered
from embodied_kv.serving.remote_policy.connection import RemotePolicy, Reply
from embodied_kv.session.engine_part import Branch

SECONDS = 30.0  # that a server has for a capsule


class RemotePart:
    """The server's part of a capsule is the bytes of a capsule of the server.

    So a robot's capsule outlives the server, and is resumed by any server whose engine has the
    same fingerprint. Texts do not go on.
    """

    name, depth = 'server', 'planner'
    streams_max = 0

    def __init__(self, robot: str) -> None:
        self.robot, self.process_id = robot, uuid.uuid4().hex
        self.committed = self.stamp = 0  # requests so far, and ns of the newest observation
        self._policy: RemotePolicy | None = None

    def attach(self, policy: RemotePolicy | None) -> None:
        """Ask this connection from now on; None for no connection."""
        self._policy = policy

    def asked(self, stamp: int) -> None:
        """Count a request about an observation of this stamp (ns)."""
        self.committed, self.stamp = self.committed + 1, stamp

    def buffers(self) -> tuple:
        """None: what is frozen is the server's."""
        return ()

    def streams(self) -> list[DecodeStream]:
        """None: texts are the server's."""
        return []

    def finish(self) -> None:
        """Nothing is launched here."""

    def freeze(self) -> FrozenPart:
        """tensors: 'capsule', uint8 [bytes]. Raises CapsuleError."""
        name = self._call({'endpoint': 'snapshot'}).get('name')
        data = self._call({'endpoint': 'export', 'name': name}).get('capsule')
        if not isinstance(data, bytes) or not data:
            raise CapsuleError('the policy server returned no capsule', ErrorCode.UNAVAILABLE)
        return FrozenPart({'capsule': torch.frombuffer(bytearray(data), dtype=torch.uint8)}, {})

    def check(self, frozen: FrozenPart) -> None:
        """Raises CapsuleError without the bytes of a capsule."""
        data = frozen.tensors.get('capsule')
        if data is None or data.dtype != torch.uint8 or data.dim() != 1 or not len(data):
            raise CapsuleError(
                'the capsule has no part of a policy server: it was taken with an engine of the '
                "robot's own",
                ErrorCode.MISMATCH,
            )

    def resume(self, frozen: FrozenPart) -> None:
        """The session at the server goes on from there. Raises CapsuleError."""
        data, name = frozen.tensors['capsule'].cpu().numpy().tobytes(), uuid.uuid4().hex[:16]
        self._call({'endpoint': 'import', 'capsule': data, 'name': name})
        self._call({'endpoint': 'restore', 'name': name})

    def branch(self, frozen: FrozenPart, branches: Sequence[Branch]) -> list[list[DecodeStream]]:
        """Raises CapsuleError: a policy server does not fork."""
        raise CapsuleError('a policy server forks no capsule', ErrorCode.UNAVAILABLE)

    def _call(self, request: dict[str, object]) -> Reply:
        try:
            return answered(self._policy, 'exports', request, SECONDS)
        except CodedError as error:
            raise CapsuleError(str(error), error.code) from error
