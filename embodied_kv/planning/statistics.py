"""A memory in numbers. Knows segments, groups and what the store keeps. Does not know plans."""

from __future__ import annotations

from embodied_kv.memory.memory import Memory
from embodied_kv.planning.plan import MemoryStats


def memory_stats(memory: Memory, plans: int, fresh: int, lost: dict[str, int]) -> MemoryStats:
    """As it is now. plans, fresh, lost: what `MemoryStats` says of them."""
    store, groups = memory.store, memory.groups
    static = sum(group.static for group in groups)
    return MemoryStats(
        step=store.step,
        segments=len(memory),
        static=static,
        dynamic=len(groups) - static,
        units=len(groups.units()),
        kept=len(store.keys()),
        bytes=store.bytes,
        cached_bytes=store.cache.bytes,
        hits=store.cache.hits,
        misses=store.cache.misses,
        plans=plans,
        fresh=fresh,
        transitions={n: groups.counts[n] for n in ('static', 'dynamic', 'merged', 'left')},
        invalidated=lost,
    )
