"""The device tier of a registry as a pool of memory for KV.

Knows which capsules could leave it, and what bringing them back costs. Does not move anything
itself.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from functools import partial

from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier
from embodied_kv.kv.budget import KvBudget, OwnEviction
from embodied_kv.kv.pool import Evictable


class DevicePool:
    """Copies of capsules on the device; on a CPU they lie where those of the host do.

    What goes for other KV is in a tier below then; only the policy 'drop' loses it, or another.
    For a new capsule, older ones give way as in a full tier. kv_budget: whose budget they share
    from now on.
    """

    name = 'capsules'

    def __init__(self, registry: Registry, kv_budget: KvBudget | None = None) -> None:
        self._registry = registry
        if kv_budget is not None:
            kv_budget.join(self)
            registry.room = partial(self._room, kv_budget)

    @property
    def bytes(self) -> int:
        return self._registry.used(Tier.DEVICE)

    @property
    def bytes_used(self) -> int:
        return self.bytes

    @property
    def bytes_reserved(self) -> int:
        return self.bytes

    def evictable(self) -> list[Evictable]:
        """Capsules that are not pinned and may leave, least recently used first.

        Each of them as if no other left, which may take the last room below. cost: of a copy back
        from the host, as fast as the last one between the two; 0, not known, from elsewhere.
        """
        seconds = self._registry.byte_seconds
        return [
            Evictable(
                leaving.bytes,
                leaving.bytes * seconds if leaving.tier is Tier.HOST else 0.0,
                partial(self._registry.leave_device, name),
                self._registry.idle(name),
                quick=leaving.quick,
            )
            for name, leaving in self._registry.could_leave().items()
        ]

    def _room(self, kv_budget: KvBudget, size: int, cost: float) -> AbstractContextManager[None]:
        """Room for so many bytes. A promotion, whose cost is bounded, costs no other its place."""
        own = partial(self.own, size) if cost == math.inf else lambda lacking: None
        return kv_budget.claim(self, size, cost, wait=True, own=own)

    def own(self, size: int, lacking: float) -> OwnEviction | None:
        """Return what older capsules give up for a new one, as `own_of`."""
        return own_of(self._registry, size, lacking)

    def check_integrity(self) -> None:
        """Raises AssertionError with the broken law, of all tiers."""
        self._registry.check_integrity()


def own_of(registry: Registry, size: int, lacking: float) -> OwnEviction | None:
    """Return what the capsules of a registry give up for a new one of `size` bytes.

    None: its policy gives nothing up, but each may leave as other KV makes it.
    """
    most = registry.can_give(size, lacking)
    if not most and registry.capacities.policy == 'demote':
        return None
    here = [r.name for r in registry.entries() if r.tier is Tier.DEVICE and not r.pinned]
    idle = max(map(registry.idle, here), default=0.0)
    return OwnEviction(most, most * registry.byte_seconds, idle, partial(registry.give, size))
