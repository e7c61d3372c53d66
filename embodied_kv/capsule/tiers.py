"""The tiers that keep capsules, their capacities, and what gives way to a newcomer.

It knows sizes, pins and the order of use. It does not know tensors or files and moves nothing:
`make_room` says which moves to make, the registry makes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, get_args

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.errors import ErrorCode
from embodied_kv.kv.transfer import held_bytes

Policy = Literal['refuse', 'demote', 'drop']


class Tier(Enum):
    """A kind of memory, the fastest first."""

    DEVICE = 'device'
    HOST = 'host'
    DISK = 'disk'

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise CapsuleError(f'no tier {value!r}; there are: {", ".join(t.value for t in cls)}')

    def __str__(self) -> str:
        return self.value


class NoRoom(CapsuleError):
    """A capsule cannot fit a tier, or the policy does not let it; nothing was moved for it."""

    code = ErrorCode.NO_ROOM


@dataclass(frozen=True)
class TierCapacities:
    """Bytes of copies that each tier may hold: 0 where there is no such tier, None for no bound.

    policy: what a full tier does with a newcomer. 'refuse' it; or 'demote' those used least
    recently to the tiers below, as long as those have room; or 'drop', which does the same and
    gives up what leaves the last tier. Raises CapsuleError for other values.
    """

    device: int | None = None
    host: int | None = None
    disk: int | None = None
    policy: Policy = 'demote'

    def __post_init__(self) -> None:
        for tier in Tier:
            if self.of(tier) < 0:
                raise CapsuleError(f'a capacity of {self.of(tier)} bytes for the {tier} tier')
        if self.policy not in get_args(Policy):
            raise CapsuleError(
                f'no policy {self.policy!r}; there are: {", ".join(get_args(Policy))}'
            )

    def of(self, tier: Tier) -> float:
        """Bytes; infinite where there is no bound."""
        capacity = getattr(self, tier.value)
        return math.inf if capacity is None else capacity

    def tiers_from(self, tier: Tier) -> list[Tier]:
        """That tier and all below, without those that hold nothing."""
        tiers = list(Tier)
        return [t for t in tiers[tiers.index(tier) :] if self.of(t) > 0]


@dataclass(frozen=True)
class TierEntry:
    """A capsule as the tiers see it. tiers: those that have a copy of it."""

    name: str
    bytes: int
    tiers: frozenset[Tier]
    pinned: bool = False

    def size(self, tier: Tier) -> int:
        """Return the bytes that a copy takes of a tier, rounded up as an allocation there is."""
        return held_bytes(self.bytes) if tier is Tier.HOST else self.bytes


@dataclass(frozen=True)
class Move:
    """A copy goes from one tier to another, or is given up where target is None."""

    name: str
    source: Tier
    target: Tier | None


def make_room(
    entries: Sequence[TierEntry], name: str, size: int, tier: Tier, capacities: TierCapacities
) -> list[Move]:
    """The moves after which `size` bytes more, as `TierEntry.size`, of `name` fit into the tier.

    entries: least recently used first. Made in order, the moves never exceed a capacity. Each tier
    keeps what was used most recently, the rest goes on to the next one below. A pinned capsule
    stays where it is, and so do other copies of `name`. Raises NoRoom.
    """
    most = capacities.of(tier)
    if most == 0:
        raise NoRoom(f'no {tier} tier for {name!r}: its capacity is 0 bytes')
    if size + sum(e.size(tier) for e in entries if tier in e.tiers) <= most:
        return []
    movable, room = _movable(entries, name, tier, capacities)
    room -= size
    if room < 0:
        why = 'it is larger than the tier:' if size > most else 'unpin one of them, or'
        raise _refusal(entries, name, size, tier, capacities, f'{why} raise the capacity')
    kept = _most_recent(movable, room, tier)
    leaving = {e.name: tier for e in movable if e.name not in kept}
    if leaving and capacities.policy == 'refuse':
        why = "the policy 'refuse' moves nothing for it: move or drop a capsule"
        raise _refusal(entries, name, size, tier, capacities, why)
    moves, lost = _pass_down(entries, name, leaving, tier, capacities)
    if lost and capacities.policy != 'drop':
        others = ', '.join(lost)
        why = f'{others} would have to go, but no tier below has room: drop a capsule'
        raise _refusal(entries, name, size, tier, capacities, why)
    return moves


def leave(
    entries: Sequence[TierEntry], name: str, tier: Tier, capacities: TierCapacities
) -> list[Move]:
    """Return the moves by which the capsule `name` leaves the tier, as the policy says.

    They are those of `make_room` where it has to go for a newcomer. Raises NoRoom.
    """
    moves, lost = _pass_down(entries, '', {name: tier}, tier, capacities)
    if capacities.policy == 'refuse' or lost and capacities.policy != 'drop':
        raise NoRoom(f'{name!r} stays in the {tier} tier: no tier below has room')
    return moves


def _pass_down(
    entries: Sequence[TierEntry],
    name: str,
    leaving: Mapping[str, Tier],
    tier: Tier,
    capacities: TierCapacities,
) -> tuple[list[Move], list[str]]:
    """The moves of those that leave the tier, and which of them the last tier gives up.

    The lowest tier's moves come first: room below, before anything comes down. Copies of `name`
    stay.
    """
    moves: list[Move] = []
    leaving = dict(leaving)  # which need room in a lower tier, and where they lie now
    for here in capacities.tiers_from(tier):
        if here is tier or not leaving:
            continue
        staying, room = _movable(entries, name, here, capacities)
        there = {e.name for e in staying}
        movable = [e for e in entries if e.name in there or e.name in leaving]
        kept = _most_recent(movable, room, here)
        for e in movable:
            if e.name in leaving and (e.name in kept or e.name in there):
                target = here if e.name in kept else None  # None: this copy goes, as the one here
                moves.append(Move(e.name, leaving.pop(e.name), target))
            if e.name not in kept:
                leaving.setdefault(e.name, here)
    moves += [Move(other, source, None) for other, source in leaving.items()]
    return moves[::-1], list(leaving)


def _movable(
    entries: Sequence[TierEntry], name: str, tier: Tier, capacities: TierCapacities
) -> tuple[list[TierEntry], float]:
    """What in the tier may go for `name`, and the bytes that it shares."""
    here = [e for e in entries if tier in e.tiers]
    movable = [e for e in here if not e.pinned and e.name != name]
    fixed = sum(e.size(tier) for e in here) - sum(e.size(tier) for e in movable)
    return movable, capacities.of(tier) - fixed


def _most_recent(movable: Sequence[TierEntry], room: float, tier: Tier) -> set[str]:
    """Who stays in the tier: from the most recent use back, until one does not fit any more.

    One that is larger than the room makes nobody give way.
    """
    kept: set[str] = set()
    for e in reversed([e for e in movable if e.size(tier) <= room]):
        room -= e.size(tier)
        if room < 0:
            break
        kept.add(e.name)
    return kept


def _refusal(
    entries: Sequence[TierEntry],
    name: str,
    size: int,
    tier: Tier,
    capacities: TierCapacities,
    why: str,
) -> NoRoom:
    here = [e for e in entries if tier in e.tiers]
    free = max(0, capacities.of(tier) - sum(e.size(tier) for e in here))
    pinned = ', '.join(f'{e.name} with {e.size(tier)}' for e in here if e.pinned) or 'nothing'
    return NoRoom(
        f'{name!r} needs {size} bytes of the {tier} tier: {free} of {capacities.of(tier)} are '
        f'free, pinned is {pinned}; {why}'
    )
