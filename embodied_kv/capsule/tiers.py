"""Where capsules may lie, how many bytes may lie there, and what gives way to a newcomer.

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
                raise CapsuleError(f'a budget of {self.of(tier)} bytes for the {tier} tier')
        if self.policy not in get_args(Policy):
            raise CapsuleError(
                f'no policy {self.policy!r}; there are: {", ".join(get_args(Policy))}'
            )

    def of(self, tier: Tier) -> float:
        """Bytes; infinite where there is no bound."""
        budget = getattr(self, tier.value)
        return math.inf if budget is None else budget

    def tiers_from(self, tier: Tier) -> list[Tier]:
        """That tier and all below, without those that hold nothing."""
        tiers = list(Tier)
        return [t for t in tiers[tiers.index(tier) :] if self.of(t) > 0]


@dataclass(frozen=True)
class TierEntry:
    """What is known of a capsule here. tiers: where copies of it lie."""

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
    held: Sequence[TierEntry], name: str, size: int, tier: Tier, budgets: TierCapacities
) -> list[Move]:
    """The moves after which `size` bytes more, of the capsule `name`, fit into the tier.

    held: least recently used first. Made in order, the moves keep every budget at every moment.
    Each tier keeps what was used most recently, the rest goes on to the next one below. A pinned
    capsule stays where it is, and so do other copies of `name`. Raises NoRoom.
    """
    most = budgets.of(tier)
    if most == 0:
        raise NoRoom(f'no {tier} tier for {name!r}: its budget is 0 bytes')
    if size + sum(h.bytes for h in held if tier in h.tiers) <= most:
        return []
    tiers = budgets.tiers_from(tier)
    moves: list[Move] = []
    leaving: dict[str, Tier] = {}  # who needs a place in a lower tier, and where it lies now
    for here in tiers:
        fixed = sum(h.bytes for h in held if here in h.tiers and (h.pinned or h.name == name))
        room = budgets.of(here) - fixed - (size if here is tier else 0)
        if room < 0 and here is tier:
            why = 'it is larger than the tier' if size > budgets.of(tier) else 'unpin one of them'
            raise _refusal(held, name, size, tier, budgets, f'{why}, or raise the budget')
        movable = [
            h
            for h in held
            if (here in h.tiers or h.name in leaving) and not h.pinned and h.name != name
        ]
        kept = _most_recent(movable, room)
        for h in movable:
            if h.name in leaving and (h.name in kept or here in h.tiers):
                target = here if h.name in kept else None  # None: this copy goes, as the one here
                moves.append(Move(h.name, leaving.pop(h.name), target))
            if h.name not in kept:
                leaving.setdefault(h.name, here)
        if not leaving:
            return moves[::-1]  # the lowest tier first: room below, before anything comes down
        if budgets.policy == 'refuse':
            why = "the policy 'refuse' moves nothing for it: move or drop a capsule"
            raise _refusal(held, name, size, tier, budgets, why)
    if budgets.policy != 'drop':
        others = ', '.join(leaving)
        why = f'{others} would have to go, but no tier below has room: drop a capsule'
        raise _refusal(held, name, size, tier, budgets, why)
    moves += [Move(other, source, None) for other, source in leaving.items()]
    return moves[::-1]


def _most_recent(movable: Sequence[TierEntry], room: float) -> set[str]:
    """Who stays: from the most recent use back, until one does not fit any more.

    One that could not fit alone takes nobody's place.
    """
    kept: set[str] = set()
    for h in reversed([h for h in movable if h.bytes <= room]):
        room -= h.bytes
        if room < 0:
            break
        kept.add(h.name)
    return kept


def _refusal(
    held: Sequence[TierEntry], name: str, size: int, tier: Tier, budgets: TierCapacities, why: str
) -> NoRoom:
    here = [h for h in held if tier in h.tiers]
    free = max(0, budgets.of(tier) - sum(h.bytes for h in here))
    pinned = ', '.join(f'{h.name} with {h.bytes}' for h in here if h.pinned) or 'nothing'
    return NoRoom(
        f'{name!r} needs {size} bytes of the {tier} tier: {free} of {budgets.of(tier)} are free, '
        f'pinned is {pinned}; {why}'
    )
