"""Operations on pools: the eviction of anything that a pool offers, during any other work.

Knows pools. Does not know their content.
"""

from __future__ import annotations

from random import Random

from benchmarks.soak.outcome import DeclinedError
from benchmarks.soak.world import World


def evict(world: World, random: Random) -> None:
    """Evict an offer of a pool, as for a lack of memory; it may be gone or in use by then."""
    offers = random.choice(world.kv.budget.pools).evictable()
    if not offers or not random.choice(offers).evict():
        raise DeclinedError('nothing could go')
