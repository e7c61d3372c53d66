"""What may happen to memory: anything that a pool could do without goes, whoever works meanwhile.

Knows pools. Does not know what lies in them.
"""

from __future__ import annotations

from random import Random

from embodied_kv.bench.soak.outcome import Declined
from embodied_kv.bench.soak.world import World
from embodied_kv.capsule.device_pool import DevicePool


def evict(world: World, random: Random) -> None:
    """Somebody is short of memory; what was offered may be gone, or in use, meanwhile."""
    pools = *world.kv.pools, *world.planning.pools, DevicePool(world.registry)
    offers = random.choice(pools).evictable()
    if not offers or not random.choice(offers).evict():
        raise Declined('nothing could go')
