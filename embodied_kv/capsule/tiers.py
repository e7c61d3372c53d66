"""The tiers that store capsules, their capacities, and the eviction for a new capsule.

`make_room` plans moves, the registry makes them.
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


class NoRoomError(CapsuleError):
    """A capsule that does not fit into a tier, or that the policy refuses; nothing was moved."""

    code = ErrorCode.NO_ROOM


@dataclass(frozen=True)
class TierCapacities:
    """The capacity (bytes) of each tier: 0 for no such tier, None for no bound.

    `policy` decides what a full tier does with a new capsule. 'refuse' refuses it. 'demote' moves
    the least recently used ones to the tiers below while those have room. 'drop' does the same and
    drops what leaves the last tier. Raises CapsuleError for other values.
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
        """Return the bytes of a tier; infinity for no bound."""
        capacity = getattr(self, tier.value)
        return math.inf if capacity is None else capacity


@dataclass(frozen=True)
class TierEntry:
    """The properties of a capsule that eviction depends on; `tiers` store a copy of it."""

    name: str
    bytes: int
    tiers: frozenset[Tier]
    pinned: bool = False

    def size(self, tier: Tier) -> int:
        """Return the bytes of a copy in a tier, rounded up to an allocation there."""
        return held_bytes(self.bytes) if tier is Tier.HOST else self.bytes


@dataclass(frozen=True)
class Move:
    """The move of a copy to another tier; `target` None releases it."""

    name: str
    source: Tier
    target: Tier | None


def make_room(
    entries: Sequence[TierEntry], name: str, size: int, tier: Tier, capacities: TierCapacities
) -> list[Move]:
    """Return the moves after which `size` more bytes (`TierEntry.size`) fit into a tier.

    Made in order, the moves never exceed a capacity. Each tier keeps the most recently used
    capsules; the others move on to the next tier below. Pinned capsules stay, and so do other
    copies of `name`.

    Args:
        entries: Least recently used first.
        name: Name of the new capsule.

    Raises:
        NoRoomError: If the policy or the tiers below do not permit it.
    """
    most, here = capacities.of(tier), [e for e in entries if tier in e.tiers]
    if most == 0:
        raise NoRoomError(f'no {tier} tier for {name!r}: its capacity is 0 bytes')
    free = most - sum(e.size(tier) for e in here)
    if size <= free:
        return []

    def refusal(why: str) -> NoRoomError:
        pinned = ', '.join(f'{e.name} with {e.size(tier)}' for e in here if e.pinned) or 'nothing'
        return NoRoomError(
            f'{name!r} needs {size} bytes of the {tier} tier: {max(0, free)} of {most} are free, '
            f'pinned is {pinned}; {why}'
        )

    movable, room = _movable(entries, name, tier, capacities)
    room -= size
    if room < 0:
        why = 'it is larger than the tier:' if size > most else 'unpin one of them, or'
        raise refusal(f'{why} raise the capacity')
    kept = _most_recent(movable, room, tier)
    leaving = {e.name: tier for e in movable if e.name not in kept}
    if leaving and capacities.policy == 'refuse':
        why = "the policy 'refuse' moves nothing for it: move or drop a capsule"
        raise refusal(why)
    moves, lost = _pass_down(entries, name, leaving, tier, capacities)
    if lost and capacities.policy != 'drop':
        others = ', '.join(lost)
        why = f'{others} would have to go, but no tier below has room: drop a capsule'
        raise refusal(why)
    return moves


def leave(
    entries: Sequence[TierEntry], name: str, tier: Tier, capacities: TierCapacities
) -> list[Move]:
    """Return the moves by which `name` leaves the tier, as in `make_room`. Raises NoRoomError."""
    moves, lost = _pass_down(entries, '', {name: tier}, tier, capacities)
    if capacities.policy == 'refuse' or (lost and capacities.policy != 'drop'):
        raise NoRoomError(f'{name!r} stays in the {tier} tier: no tier below has room')
    return moves


def _pass_down(
    entries: Sequence[TierEntry],
    name: str,
    leaving: Mapping[str, Tier],
    tier: Tier,
    capacities: TierCapacities,
) -> tuple[list[Move], list[str]]:
    """Return the moves of capsules that leave the tier, and the names that the last tier loses.

    The moves of the lowest tier come first, so that each tier has room before a copy arrives.
    Copies of `name` stay.
    """
    moves: list[Move] = []
    leaving = dict(leaving)  # capsules that need a lower tier, and their present tier
    tiers = list(Tier)
    for here in tiers[tiers.index(tier) + 1 :]:
        if not leaving or not capacities.of(here):
            continue
        staying, room = _movable(entries, name, here, capacities)
        there = {e.name for e in staying}
        movable = [e for e in entries if e.name in there or e.name in leaving]
        kept = _most_recent(movable, room, here)
        for e in movable:
            if e.name in leaving and (e.name in kept or e.name in there):
                target = here if e.name in kept else None  # None: the copy here suffices
                moves.append(Move(e.name, leaving.pop(e.name), target))
            if e.name not in kept:
                leaving.setdefault(e.name, here)
    moves += [Move(other, source, None) for other, source in leaving.items()]
    return moves[::-1], list(leaving)


def _movable(
    entries: Sequence[TierEntry], name: str, tier: Tier, capacities: TierCapacities
) -> tuple[list[TierEntry], float]:
    """Return the copies in the tier that may move for `name`, and the bytes left for them."""
    here = [e for e in entries if tier in e.tiers]
    movable = [e for e in here if not e.pinned and e.name != name]
    fixed = sum(e.size(tier) for e in here) - sum(e.size(tier) for e in movable)
    return movable, capacities.of(tier) - fixed


def _most_recent(movable: Sequence[TierEntry], room: float, tier: Tier) -> set[str]:
    """Return the names that stay in the tier: the most recently used that fit.

    A capsule larger than the room evicts no other.
    """
    kept: set[str] = set()
    for e in reversed([e for e in movable if e.size(tier) <= room]):
        room -= e.size(tier)
        if room < 0:
            break
        kept.add(e.name)
    return kept
