"""The device tier of a registry as a pool of memory for KV.

Knows which capsules could leave it, and what bringing them back costs. Does not move anything
itself.
"""

from __future__ import annotations

from functools import partial

from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier
from embodied_kv.kv.plane import Plane
from embodied_kv.kv.pool import Evictable


class DevicePool:
    """Copies of capsules on the device; on a CPU they lie where those of the host do.

    What goes is in the host tier then, or on the disk: no capsule is lost. plane: whose budget
    they share from now on.
    """

    name = 'capsules'

    def __init__(self, registry: Registry, plane: Plane | None = None) -> None:
        self._registry = registry
        if plane is not None:
            plane.join(self)
            registry.room = lambda size, cost: plane.claim(self, size, cost, wait=True)

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
        """Capsules that are not pinned and would lie elsewhere, least recently used first.

        Each of them as if no other left, which may take the host's last room. cost: of a copy
        back from the host, as fast as the last one between the two; 0, not known, from the disk.
        """
        seconds = {Tier.HOST: self._registry.byte_seconds, Tier.DISK: 0.0}
        return [
            Evictable(
                size,
                size * seconds[tier],
                partial(self._registry.leave_device, name),
                self._registry.idle(name),
                quick=tier is Tier.DISK or self._registry.on_host,
            )
            for name, (size, tier) in self._registry.could_leave().items()
        ]

    def check_integrity(self) -> None:
        """Raises AssertionError with the broken law, of all tiers."""
        self._registry.check_integrity()
