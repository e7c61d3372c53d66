"""What a policy server computes for a robot, frozen and resumed: a part of the robot's capsules.

Knows the requests `snapshot`, `export`, `import` and `restore`. Does not know what a capsule of
the server holds. Whoever calls waits for the server.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as Late

import torch

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.part import FrozenPart
from embodied_kv.errors import ErrorCode, failure_code
from embodied_kv.kv.decode_stream import DecodeStream
from embodied_kv.serving.remote_policy.connection import RemotePolicy, Reply, Unanswered
from embodied_kv.session.engine_part import Branch
from embodied_kv.text import shown

SECONDS = 30.0  # that a server has for a capsule


class RemotePart:
    """The server's part of a capsule is the bytes of a capsule of the server.

    So a robot's capsule outlives the server, and is resumed by any server whose engine has the
    same fingerprint. on_resumed: never called, since texts do not go on.
    """

    name, depth = 'server', 'planner'
    streams_max = 0

    def __init__(self, robot: str) -> None:
        self.robot, self.process_id = robot, uuid.uuid4().hex
        self.on_resumed: Callable[[Sequence[DecodeStream]], None] = lambda streams: None
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
        """Raises CapsuleError without the bytes of a capsule, and without a server."""
        data = frozen.tensors.get('capsule')
        if data is None or data.dtype != torch.uint8 or data.dim() != 1 or not len(data):
            raise CapsuleError(
                'the capsule has no part of a policy server: it was taken with an engine of the '
                "robot's own",
                ErrorCode.MISMATCH,
            )
        self._connected()

    def resume(self, frozen: FrozenPart) -> None:
        """The session at the server goes on from there. Raises CapsuleError."""
        data, name = frozen.tensors['capsule'].cpu().numpy().tobytes(), uuid.uuid4().hex[:16]
        self._call({'endpoint': 'import', 'capsule': data, 'name': name})
        self._call({'endpoint': 'restore', 'name': name})

    def branch(self, frozen: FrozenPart, branches: Sequence[Branch]) -> list[list[DecodeStream]]:
        """Raises CapsuleError: a policy server does not fork."""
        raise CapsuleError('a policy server forks no capsule', ErrorCode.UNAVAILABLE)

    def _connected(self) -> RemotePolicy:
        policy = self._policy
        if policy is None or not policy.is_connected:
            why = policy.problem if policy else 'the node action is not active'
            raise CapsuleError(
                f'the policy server must be connected (got: {why})', ErrorCode.UNAVAILABLE
            )
        if policy.extensions is None or not policy.extensions.exports:
            raise CapsuleError(
                'the policy server must know capsules that move (got one that does not); use the '
                'policy server of this package',
                ErrorCode.UNAVAILABLE,
            )
        return policy

    def _call(self, request: dict[str, object]) -> Reply:
        policy = self._connected()
        try:
            reply = policy.ask(request, SECONDS).result(2 * SECONDS)
        except (Unanswered, Late) as error:
            raise CapsuleError(
                f'the policy server did not answer: {error}', ErrorCode.UNAVAILABLE
            ) from error
        if 'error' in reply:
            code = reply.get('error_code')
            raise CapsuleError(
                f'the policy server refused it: {shown(reply["error"], 300)}',
                failure_code(code if isinstance(code, int) else 0),
            )
        return reply
