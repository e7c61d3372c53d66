"""One client's session: its rounds, and the capsules that it takes of itself.

Knows one session. Does not know connections, nor the sessions of others: a capsule is restored by
the session that it was taken of, or that was sent its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from embodied_kv.capsule.capsule import CapsuleError, FrozenPart
from embodied_kv.capsule.file_format import packed, unpacked
from embodied_kv.errors import ErrorCode
from embodied_kv.fleet.protocol import MOST_ROUNDS
from embodied_kv.session.robot_session import RobotSession
from embodied_kv.types import Observation

NO_CAPSULE = 'this session has no capsule: take a snapshot first'


@dataclass(eq=False)
class Session:
    """name: of its robot at the dispatcher. next: number of its next round.

    account: whose requests they are, which others wait for in turn; the session's own by default.
    tenant: the name of the key that it was opened with, '' where there are none.
    task: of these rounds, from the round `first` on. asked: its newest observation, since a
    moment, s, steady clock; waiting: the answer to it; instruction: what it is to do. `make`
    builds what keeps its capsules, when the first one is taken.
    """

    name: str
    make: Callable[[Session], RobotSession]
    next: int = 0
    first: int = 0
    tasks: int = 0
    account: Hashable = None
    tenant: str = ''
    asked: tuple[Observation | None, float] = None, 0.0
    waiting: Future | None = None
    instruction: str = ''
    _capsules: RobotSession | None = field(default=None, repr=False)

    @property
    def task(self) -> str:
        """A name that no other span of its rounds has."""
        return f'{self.tasks}'

    def begin(self, next: int = 0) -> None:
        """Rounds go on from this number, as another task."""
        self.tasks += 1
        self.first = self.next = next

    # ------------------------------------------------------------------ capsules; these wait

    def snapshot(self, name: str) -> str:
        """Freezes it, once it has seen something: the capsule's name. Raises CapsuleError."""
        capsule, _ = self._kept().snapshot(name)
        return capsule.name

    def restore(self, name: str) -> str:
        """Goes on from there, '' from its newest: the capsule's name. Raises CapsuleError."""
        if self._capsules is None:
            raise CapsuleError(NO_CAPSULE, ErrorCode.NOT_FOUND)
        return self._capsules.rollback(name).capsule.name

    def export(self, name: str) -> tuple[str, bytes]:
        """Return the name and the bytes of a capsule, of its newest for ''. Raises CapsuleError.

        Another server with an engine of the same fingerprint can import them.
        """
        registry = self._kept().registry
        entries = [record.name for record in registry.entries()]
        if not name and not entries:
            raise CapsuleError(NO_CAPSULE, ErrorCode.NOT_FOUND)
        capsule = registry.get(name or entries[-1])
        return capsule.name, packed(capsule)

    def take_over(self, name: str, data: bytes) -> str:
        """Keep a capsule that `export` returned, here or elsewhere, as one of this session.

        name: '' for that of the capsule. Returns its name. Raises CapsuleError.
        """
        own = self._kept()
        capsule = unpacked(data, own.registry.fingerprint)
        boundary = replace(capsule.boundary, session=own.name)
        own.registry.add(replace(capsule, name=name or capsule.name, boundary=boundary))
        return name or capsule.name

    @property
    def capsules(self) -> list[str]:
        """The names of those that are kept, least recently used first."""
        kept = self._capsules.registry.entries() if self._capsules else ()
        return [record.name for record in kept]

    def _kept(self) -> RobotSession:
        """Return what keeps its capsules; it is built when it is needed first."""
        if self._capsules is None:
            self._capsules = self.make(self)
            self._capsules.register(RoundPart(self))
        return self._capsules


class RoundPart:
    """Where its rounds stand: the noise of the next chunk is a function of their number."""

    name, depth = 'rounds', 'planner'

    def __init__(self, session: Session) -> None:
        self._session = session

    def buffers(self) -> tuple:
        """None: a number is a fact."""
        return ()

    def freeze(self) -> FrozenPart:
        """The number of the round that is asked for next."""
        return FrozenPart(facts={'next': self._session.next})

    def check(self, frozen: FrozenPart) -> None:
        """Raises CapsuleError where there is no such number."""
        number = frozen.facts.get('next') if isinstance(frozen.facts, dict) else None
        if not isinstance(number, int) or not 0 <= number < MOST_ROUNDS:
            raise CapsuleError('the capsule does not say which round comes next')

    def resume(self, frozen: FrozenPart) -> None:
        """Rounds go on from there."""
        self._session.begin(frozen.facts['next'])
