"""What may happen to memory: anything that a pool could do without goes, whoever works meanwhile.

Knows pools. Does not know what lies in them.
"""

from __future__ import annotations

from random import Random

from benchmarks.soak.outcome import DeclinedError
from benchmarks.soak.world import World


def evict(world: World, random: Random) -> None:
    """Somebody is short of memory; what was offered may be gone, or in use, meanwhile."""
    offers = random.choice(world.kv.budget.pools).evictable()
    if not offers or not random.choice(offers).evict():
        raise DeclinedError('nothing could go')
