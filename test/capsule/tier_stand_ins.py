"""Small capsules and a disk in memory for the tests of the registry."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch

from embodied_kv.capsule.capsule import Boundary, Capsule, CapsuleError
from embodied_kv.capsule.registry import Registry

OURS, FOREIGN = 'ours', 'foreign'


class Sized(Capsule):
    """A capsule that counts only the bytes of its tensors, so that a test can choose its size."""

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())


def capsule(name: str, size: int = 4, created: float = 0.0, fingerprint: str = OURS) -> Capsule:
    """Return a capsule of `size` bytes with a content that depends on its name and size."""
    values = (torch.arange(size) * 7 + sum(name.encode())) % 251
    return Sized(
        name,
        Boundary('arm', 3, 5_000),
        fingerprint,
        {'kv/rows': values.to(torch.uint8)},
        {'kv': {'rows': [1, 2]}},
        created,
    )


def same(left: Capsule, right: Capsule) -> bool:
    """Return whether two capsules are equal, apart from the device of their tensors."""
    names = left.tensors.keys() == right.tensors.keys()
    return (
        names
        and all(torch.equal(left.tensors[n], right.tensors[n]) for n in left.tensors)
        and replace(left, tensors={}).__dict__ == replace(right, tensors={}).__dict__
    )


class MemoryDisk:
    """A `capsule.disk.Disk` in memory. `fail` makes the next save raise.

    capacity: maximum number of bytes; a save that exceeds it fails the test.
    """

    def __init__(self, *capsules: Capsule, capacity: float = math.inf) -> None:
        self.files, self.capacity = {c.name: c for c in capsules}, capacity
        self.saves, self.loads, self.fail = 0, 0, False

    def claimed(self) -> AbstractContextManager[None]:
        return nullcontext()

    def save(self, saved: Capsule) -> None:
        if self.fail:
            self.fail = False
            raise CapsuleError('the disk is full')
        self.saves += 1
        self.files[saved.name] = replace(
            saved, tensors={name: tensor.clone() for name, tensor in saved.tensors.items()}
        )
        assert sum(c.bytes for c in self.files.values()) <= self.capacity

    def load(self, name: str, fingerprint: str) -> Capsule:
        assert self.files[name].fingerprint == fingerprint
        self.loads += 1
        return self.files[name]

    def names(self) -> list[str]:
        return list(self.files)

    def entry(self, name: str) -> Capsule:
        return self.files[name]

    def entries(self) -> list[Capsule]:
        return list(self.files.values())

    def drop(self, name: str) -> None:
        del self.files[name]


def tiers(registry: Registry) -> dict[str, str]:
    """Return the tier of each capsule by its name, with '+' if the disk has it as well."""
    also = {e.name: '+' if e.saved and str(e.tier) != 'disk' else '' for e in registry.entries()}
    return {e.name: f'{e.tier}{also[e.name]}' for e in registry.entries()}
