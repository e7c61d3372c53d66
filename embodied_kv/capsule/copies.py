"""Copies of capsules: on the device, on the host, on the disk.

It knows how to make a copy and give it up. It does not know which capsules there are, nor which
has to give way. An item says where its copies lie and is never changed: each method returns the
next one, so whoever keeps the table replaces it when a copy is done and not before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from embodied_kv.capsule.capsule import Boundary, Capsule
from embodied_kv.capsule.manifest import Manifest
from embodied_kv.capsule.tiers import Tier, TierEntry
from embodied_kv.kv.transfer import block_bytes, one_block


class TierStore(Protocol):
    """What keeps capsules while no process runs; `disk.Disk` is one."""

    def save(self, capsule: Capsule) -> object: ...
    def load(self, name: str, fingerprint: str) -> Capsule: ...
    def names(self) -> Iterable[str]: ...
    def entry(self, name: str) -> Manifest: ...
    def entries(self) -> Iterable[Manifest]: ...
    def drop(self, name: str) -> None: ...
    def claimed(self) -> AbstractContextManager[None]: ...


@dataclass(frozen=True, eq=False, kw_only=True)
class CapsuleCopy(TierEntry):
    """A capsule, and where it lies. capsule: None where the disk alone has it."""

    boundary: Boundary
    fingerprint: str
    created: float
    capsule: Capsule | None = None

    @classmethod
    def of(
        cls, about: Capsule | Manifest, tiers: Set[Tier], capsule: Capsule | None = None
    ) -> CapsuleCopy:
        return cls(
            name=about.name,
            bytes=about.bytes,
            tiers=frozenset(tiers),
            boundary=about.boundary,
            fingerprint=about.fingerprint,
            created=about.created,
            capsule=capsule,
        )

    @property
    def in_memory(self) -> Capsule:
        """The capsule of a loaded item."""
        assert self.capsule is not None
        return self.capsule


class TierCopier:
    """The memory of a device, that of the host, and a disk if there is one.

    In memory a capsule has one copy at most, beside the one on the disk. byte_seconds: s a byte,
    of the last copy between device and host; 0 before the first. on_host: whether the device's
    memory is the host's.
    """

    def __init__(
        self,
        disk: TierStore | None,
        device: torch.device | str,
        copy: Callable[[Tensor, torch.device], Tensor],
    ) -> None:
        self.disk, self._copy, self.byte_seconds = disk, copy, 0.0
        self._devices = {Tier.DEVICE: torch.device(device), Tier.HOST: torch.device('cpu')}
        self.on_host = torch.device(device).type == 'cpu'

    @property
    def _store(self) -> TierStore:
        """The disk of an item that is on it, or goes there."""
        assert self.disk is not None
        return self.disk

    def loaded(self, item: CapsuleCopy) -> CapsuleCopy:
        """With its capsule at hand, read from the disk if need be."""
        if item.capsule is not None:
            return item
        with one_block(item.bytes):  # its header is longer than what lies between tensors
            return replace(item, capsule=self._store.load(item.name, item.fingerprint))

    def copied(self, item: CapsuleCopy, tier: Tier) -> CapsuleCopy:
        """A loaded item with a copy in the tier; in memory it replaces the other."""
        if tier in item.tiers:
            return item
        if tier is Tier.DISK:
            self._store.save(item.in_memory)
            return replace(item, tiers=item.tiers | {tier})
        device, began = self._devices[tier], time.perf_counter()
        before = item.in_memory
        tensors = before.tensors
        with one_block(block_bytes(tensors.values())):
            tensors = {name: self._copy(tensor, device) for name, tensor in tensors.items()}
        if item.tiers - {Tier.DISK} and item.bytes:
            self.byte_seconds = (time.perf_counter() - began) / item.bytes
        capsule = replace(before, tensors=tensors)
        if 'encoded_facts' in vars(before):  # they are encoded once
            vars(capsule)['encoded_facts'] = before.encoded_facts
        return replace(item, tiers=item.tiers & {Tier.DISK} | {tier}, capsule=capsule)

    def only(self, item: CapsuleCopy, tiers: Set[Tier]) -> CapsuleCopy:
        """Without the copies that lie elsewhere."""
        kept = item.tiers & tiers
        if Tier.DISK in item.tiers - kept and item.name in self._store.names():
            self._store.drop(item.name)  # unless somebody removed the file
        in_memory = bool(kept - {Tier.DISK})
        return replace(item, tiers=kept, capsule=item.capsule if in_memory else None)
