"""Copies of capsules on the device, on the host and on the disk.

A `CapsuleCopy` is immutable: each method of `TierCopier` returns the next one, and the registry
replaces its entry when the copy is complete.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Set
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from embodied_kv.capsule.capsule import Boundary, Capsule
from embodied_kv.capsule.disk import Disk
from embodied_kv.capsule.manifest import Manifest
from embodied_kv.capsule.tiers import Tier, TierEntry
from embodied_kv.kv.transfer import block_bytes, one_block


@dataclass(frozen=True, eq=False, kw_only=True)
class CapsuleCopy(TierEntry):
    """A capsule and the tiers that store it; `capsule` is None if only the disk does."""

    boundary: Boundary
    fingerprint: str
    created: float
    capsule: Capsule | None = None

    @classmethod
    def of(
        cls, about: Capsule | Manifest, tiers: Set[Tier], capsule: Capsule | None = None
    ) -> CapsuleCopy:
        names = 'name', 'bytes', 'boundary', 'fingerprint', 'created'
        known = {name: getattr(about, name) for name in names}
        return cls(tiers=frozenset(tiers), capsule=capsule, **known)

    @property
    def in_memory(self) -> Capsule:
        """Return the capsule of a loaded item."""
        assert self.capsule is not None
        return self.capsule


@dataclass(frozen=True)
class CapsuleRecord:
    """An entry in a list of capsules.

    Attributes:
        bytes: Size of its file.
        tier: The fastest tier that stores it.
        saved: Whether the disk stores it, too.
        age: Seconds since it was made.
        fits: Whether its fingerprint equals that of this engine.
    """

    name: str
    bytes: int
    tier: Tier
    saved: bool
    pinned: bool
    age: float
    boundary: Boundary
    fingerprint: str
    fits: bool

    @classmethod
    def of(cls, item: CapsuleCopy, now: float, fingerprint: str) -> CapsuleRecord:
        """Return the record of an item at `now` (s since the epoch), for this engine."""
        return cls(
            name=item.name,
            bytes=item.bytes,
            tier=next(tier for tier in Tier if tier in item.tiers),
            saved=Tier.DISK in item.tiers,
            pinned=item.pinned,
            age=max(0.0, now - item.created),  # a clock may be set back
            boundary=item.boundary,
            fingerprint=item.fingerprint,
            fits=item.fingerprint == fingerprint,
        )


class TierCopier:
    """Copies capsules between the memory of a device, that of the host, and an optional disk.

    A capsule has at most one copy in memory, in addition to the copy on the disk. `byte_seconds`
    is the time (s per byte) of the last copy between device and host, 0 before the first.
    `on_host` states whether the memory of the device is that of the host.
    """

    def __init__(
        self,
        disk: Disk | None,
        device: torch.device | str,
        copy: Callable[[Tensor, torch.device], Tensor],
    ) -> None:
        self._disk, self._copy, self.byte_seconds = disk, copy, 0.0
        self._devices = {Tier.DEVICE: torch.device(device), Tier.HOST: torch.device('cpu')}
        self.on_host = torch.device(device).type == 'cpu'

    @property
    def _store(self) -> Disk:
        """Return the disk, for an item that is or will be stored there."""
        assert self._disk is not None
        return self._disk

    def loaded(self, item: CapsuleCopy) -> CapsuleCopy:
        """Return the item with its capsule, read from the disk if necessary."""
        if item.capsule is not None:
            return item
        with one_block(item.bytes):  # enough: the counted header is longer than the gaps
            return replace(item, capsule=self._store.load(item.name, item.fingerprint))

    def copied(self, item: CapsuleCopy, tier: Tier) -> CapsuleCopy:
        """Return a loaded item with a copy in the tier; in memory it replaces the other copy."""
        if tier in item.tiers:
            return item
        before = item.in_memory
        if tier is Tier.DISK:
            self._store.save(before)
            return replace(item, tiers=item.tiers | {tier})
        device, began = self._devices[tier], time.perf_counter()
        with one_block(block_bytes(before.tensors.values())):
            tensors = {name: self._copy(tensor, device) for name, tensor in before.tensors.items()}
        if item.tiers - {Tier.DISK} and item.bytes:
            self.byte_seconds = (time.perf_counter() - began) / item.bytes
        capsule = replace(before, tensors=tensors)
        if 'encoded_facts' in vars(before):  # the facts are encoded once
            vars(capsule)['encoded_facts'] = before.encoded_facts
        return replace(item, tiers=item.tiers & {Tier.DISK} | {tier}, capsule=capsule)

    def only(self, item: CapsuleCopy, tiers: Set[Tier]) -> CapsuleCopy:
        """Return the item without its copies in other tiers."""
        kept = item.tiers & tiers
        if Tier.DISK in item.tiers - kept and item.name in self._store.names():
            self._store.drop(item.name)  # a user may have removed the file
        in_memory = bool(kept - {Tier.DISK})
        return replace(item, tiers=kept, capsule=item.capsule if in_memory else None)
