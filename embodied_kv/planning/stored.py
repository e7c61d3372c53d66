"""What of the stored KV a plan may read. Knows the store and methods. Does not know prompts."""

from __future__ import annotations

from collections.abc import Sequence

from embodied_kv.memory.memory import Memory
from embodied_kv.memory.prefill import KvLost
from embodied_kv.memory.segment import MemoryFault
from embodied_kv.memory.store import MemoryStore
from embodied_kv.memory.unit import Unit
from embodied_kv.planning.prompts import PlannerPrompts
from embodied_kv.planning.reuse_methods import NEED_WHOLE_UNITS


def readable_units(memory: Memory) -> tuple[Unit, ...]:
    """What plans may come to read: the units of the present groups, and each segment by itself."""
    units = memory.units()
    singles = (Unit((segment,)) for unit in units for segment in unit.segments)
    return (*units, *singles)


def keep_whole(memory: Memory) -> None:
    """Forgets stored KV but for that of readable units of which every token is there."""
    store, whole = memory.store, set()
    for unit in readable_units(memory):
        if (key := unit.key) in store:
            if sum(store.lengths(key)) == sum(map(memory.groups.tokens, unit.ids)):
                whole.add(key)
    store.forget(*(key for key in store.keys() if key not in whole))


def available(units: Sequence[Unit], memory: Memory) -> tuple[Unit, ...]:
    """Where joint KV is missing, the segments' own, if all have it: no plan waits for more."""
    found: list[Unit] = []
    for unit in units:
        singles = [Unit((segment,), unit.group, unit.score) for segment in unit.segments]
        jointly = not memory.missing([unit]) or memory.missing(singles)
        found += [unit] if jointly else singles
    return tuple(found)


def kept_tokens(
    units: Sequence[Unit], store: MemoryStore, prompts: PlannerPrompts, method: str
) -> dict[str, tuple[int, ...]]:
    """By key, tokens of each segment that its KV has; without what the method cannot read.

    Raises KvLost where a unit has none.
    """
    found = {}
    for unit in units:
        try:
            counts = store.lengths(unit.key)
        except MemoryFault as fault:
            raise KvLost(unit.key, fault) from fault
        is_thin = sum(counts) < sum(map(len, prompts.unit(unit)))
        if not (is_thin and method in NEED_WHOLE_UNITS):
            found[unit.key] = counts
    return found
