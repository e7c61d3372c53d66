"""The session of one client: its rounds, and the capsules of its state.

Only the session from which a capsule was taken, or into which it was imported, can restore it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import cast

from embodied_kv.capsule.capsule import CapsuleError, FrozenPart
from embodied_kv.capsule.file_format import packed, unpacked
from embodied_kv.errors import ErrorCode
from embodied_kv.fleet.protocol import MOST_ROUNDS
from embodied_kv.session.robot_session import RobotSession

NO_CAPSULE = 'the session must have a capsule (got none); take a snapshot first'


@dataclass(eq=False)
class Session:
    """A session.

    Attributes:
        name: Name of its robot at the dispatcher.
        make: Creates the RobotSession that keeps its capsules, when it is needed.
        next: Number of its next round.
        first: First round of the current task.
        tasks: Number of tasks so far.
        account: Account of its requests for the scheduler; its own by default.
        tenant: Name of the key that opened it; '' without keys.
        waiting: The future of the answer to the newest request.
        instruction: The instruction of the current task.
    """

    name: str
    make: Callable[[Session], RobotSession]
    next: int = 0
    first: int = 0
    tasks: int = 0
    account: Hashable = None
    tenant: str = ''
    waiting: Future | None = None
    instruction: str = ''
    _capsules: RobotSession | None = field(default=None, repr=False)

    @property
    def task(self) -> str:
        """The name of the current task, which no other task of the session has."""
        return f'{self.tasks}'

    def begin(self, next: int = 0) -> None:
        """Begin another task whose rounds continue from this number."""
        self.tasks += 1
        self.first = self.next = next

    def snapshot(self, name: str) -> str:
        """Take a capsule, even before the first frame; return its name. Raises CapsuleError."""
        capsule, _ = self._kept().snapshot(name)
        return capsule.name

    def restore(self, name: str) -> str:
        """Restore a capsule, '' for the newest, and return its name. Raises CapsuleError."""
        if self._capsules is None:
            raise CapsuleError(NO_CAPSULE, ErrorCode.NOT_FOUND)
        return self._capsules.rollback(name).capsule.name

    def export(self, name: str) -> tuple[str, bytes]:
        """Return the name and the bytes of a capsule, '' for the newest. Raises CapsuleError.

        A server whose engine has the same fingerprint can import them.
        """
        own = self._kept()
        if not name and not own.registry.entries():
            raise CapsuleError(NO_CAPSULE, ErrorCode.NOT_FOUND)
        capsule = own.registry.get(name or own.newest())
        return capsule.name, packed(capsule)

    def take_over(self, name: str, data: bytes) -> str:
        """Add an exported capsule to this session and return its name. Raises CapsuleError.

        `name`: '' for the capsule's name.
        """
        own = self._kept()
        capsule = unpacked(data, own.registry.fingerprint)
        number = own.engine_part.committed  # numbers of another server mean nothing here
        boundary = replace(capsule.boundary, session=own.name, number=number)
        own.registry.add(replace(capsule, name=name or capsule.name, boundary=boundary))
        return name or capsule.name

    @property
    def capsules(self) -> list[str]:
        """The names of its capsules, least recently used first."""
        kept = self._capsules.registry.entries() if self._capsules else ()
        return [record.name for record in kept]

    def _kept(self) -> RobotSession:
        if self._capsules is None:
            self._capsules = self.make(self)
            self._capsules.register(RoundPart(self))
        return self._capsules


class RoundPart:
    """The next round's number as part of a capsule; it determines the noise of its chunk."""

    name, depth = 'rounds', 'planner'

    def __init__(self, session: Session) -> None:
        self._session = session

    def freeze(self) -> FrozenPart:
        return FrozenPart(facts={'next': self._session.next})

    def check_resumable(self, frozen: FrozenPart) -> None:
        number = frozen.fact('next')
        if not isinstance(number, int) or not 0 <= number < MOST_ROUNDS:
            raise CapsuleError('the capsule must have the number of the next round')

    def resume(self, frozen: FrozenPart) -> None:
        self._session.begin(cast(int, frozen.fact('next')))
