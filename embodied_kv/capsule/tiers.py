"""The tiers that keep capsules, their capacities, and what gives way to a newcomer.

It knows sizes, pins and the order of use. It does not know tensors or files and moves nothing:
`make_room` says which moves to make, the registry makes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, get_args

from embodied_kv.capsule.capsule import CapsuleError

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


@dataclass(frozen=True)
class TierCapacities:
    """Bytes of tensors that each tier may hold: 0 where there is no such tier, None for no bound.

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


@dataclass(frozen=True)
class Move:
    """A copy goes from one tier to another, or is given up where target is None."""

    name: str
    source: Tier
    target: Tier | None


def make_room(
    entries: Sequence[TierEntry], name: str, size: int, tier: Tier, capacities: TierCapacities
) -> list[Move]:
    """The moves after which `size` bytes more, of the capsule `name`, fit into the tier.

    entries: least recently used first. Made in order, the moves never exceed a capacity. Each tier
    keeps what was used most recently, the rest goes on to the next one below. A pinned capsule
    stays where it is, and so do other copies of `name`. Raises NoRoom.
    """
    most = capacities.of(tier)
    if most == 0:
        raise NoRoom(f'no {tier} tier for {name!r}: its capacity is 0 bytes')
    if size + sum(e.bytes for e in entries if tier in e.tiers) <= most:
        return []
    tiers = capacities.tiers_from(tier)
    moves: list[Move] = []
    leaving: dict[str, Tier] = {}  # who needs room in a lower tier, and where it lies now
    for here in tiers:
        fixed = sum(e.bytes for e in entries if here in e.tiers and (e.pinned or e.name == name))
        room = capacities.of(here) - fixed - (size if here is tier else 0)
        if room < 0 and here is tier:
            larger = size > capacities.of(tier)
            why = 'it is larger than the tier' if larger else 'unpin one of them'
            raise _refusal(entries, name, size, tier, capacities, f'{why}, or raise the capacity')
        movable = [
            e
            for e in entries
            if (here in e.tiers or e.name in leaving) and not e.pinned and e.name != name
        ]
        kept = _most_recent(movable, room)
        for e in movable:
            if e.name in leaving and (e.name in kept or here in e.tiers):
                target = here if e.name in kept else None  # None: this copy goes, as the one here
                moves.append(Move(e.name, leaving.pop(e.name), target))
            if e.name not in kept:
                leaving.setdefault(e.name, here)
        if not leaving:
            return moves[::-1]  # the lowest tier first: room below, before anything comes down
        if capacities.policy == 'refuse':
            why = "the policy 'refuse' moves nothing for it: move or drop a capsule"
            raise _refusal(entries, name, size, tier, capacities, why)
    if capacities.policy != 'drop':
        others = ', '.join(leaving)
        why = f'{others} would have to go, but no tier below has room: drop a capsule'
        raise _refusal(entries, name, size, tier, capacities, why)
    moves += [Move(other, source, None) for other, source in leaving.items()]
    return moves[::-1]


def _most_recent(movable: Sequence[TierEntry], room: float) -> set[str]:
    """Who stays: from the most recent use back, until one does not fit any more.

    One that is larger than the room makes nobody give way.
    """
    kept: set[str] = set()
    for e in reversed([e for e in movable if e.bytes <= room]):
        room -= e.bytes
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
    free = max(0, capacities.of(tier) - sum(e.bytes for e in here))
    pinned = ', '.join(f'{e.name} with {e.bytes}' for e in here if e.pinned) or 'nothing'
    return NoRoom(
        f'{name!r} needs {size} bytes of the {tier} tier: {free} of {capacities.of(tier)} are '
        f'free, pinned is {pinned}; {why}'
    )
