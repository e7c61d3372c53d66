"""A capsule: all state that the next step of a session depends on, frozen at a boundary.

Each part of a session freezes and restores its own state.

Source: Execution-State Capsules, section 3.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from torch import Tensor

from embodied_kv.capsule.facts import CapsuleError, Fact, encode, facts_of
from embodied_kv.capsule.manifest import FACTS, METADATA, Boundary, Manifest, TensorEntry

__all__ = ['Boundary', 'Capsule', 'CapsuleError', 'Fact', 'FrozenPart', 'Part', 'facts_of']

Note = str | Callable[[], str] | None  # a remark on a resumed part, or a function that makes it


@dataclass(frozen=True, eq=False)
class FrozenPart:
    """Copies of the tensors, by names unique within a part, and the plain facts of the part."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    facts: Fact = None

    def fact(self, name: str) -> Fact:
        """Return a fact by name; None if there is none."""
        return self.facts.get(name) if isinstance(self.facts, dict) else None


class Part(Protocol):
    """A part of a session that can be frozen and resumed. All methods run between two steps.

    Attributes:
        name: Unique within the session.
        depth: 'planner' or 'actor': the shallowest re-entry that resumes the part.
    """

    name: str
    depth: str

    def freeze(self) -> FrozenPart:
        """Return copies of all state that the next step depends on."""

    def check_resumable(self, frozen: FrozenPart) -> None:
        """Raise CapsuleError for a state that cannot be resumed. Changes nothing."""

    def resume(self, frozen: FrozenPart) -> Note:
        """Replace the present state by a state that `check_resumable` has accepted.

        Returns a remark for the client, or None. A remark that takes time to make is returned as
        a function, which runs on the thread of the client.
        """


@dataclass(frozen=True, eq=False)
class Capsule:
    """The frozen parts of a session.

    Attributes:
        tensors: By 'part/name', unchanged bytes, all on one device.
        facts: Plain values, by part.
        fingerprint: The settings that the tensors depend on (weights, dtype, kernels, layout).
        created: Seconds since the epoch.
    """

    name: str
    boundary: Boundary
    fingerprint: str
    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Fact]
    created: float = field(default_factory=time.time)

    @cached_property
    def encoded_facts(self) -> bytes:
        """Return all facts as JSON. Raises CapsuleError as `facts.encode`.

        Encoding takes long, so the first access must not be on the engine thread.
        """
        return encode(self.name, self.facts)

    @cached_property
    def bytes(self) -> int:
        """Return the size of the file: header, tensors and facts. Raises CapsuleError."""
        return self.manifest({}, 0).bytes

    def manifest(self, checksums: Mapping[str, int], facts_checksum: int) -> Manifest:
        """Return the manifest. Raises CapsuleError for a tensor name that cannot be stored.

        Args:
            checksums: CRC-32 of the bytes by tensor name; 0 is written for names that are absent.
            facts_checksum: CRC-32 of `encoded_facts`.
        """
        for name in self.tensors:
            if (
                not isinstance(name, str)
                or not name.isprintable()
                or name in ('', METADATA, FACTS)
            ):
                raise CapsuleError(f'capsule {self.name}: {name!r} cannot name a tensor')
        # safetensors requires wide dtypes first: each then starts at a multiple of its own size.
        ordered = sorted(self.tensors.items(), key=lambda item: -item[1].dtype.itemsize)
        entries = tuple(
            TensorEntry(
                name, str(t.dtype).removeprefix('torch.'), tuple(t.shape), checksums.get(name, 0)
            )
            for name, t in ordered
        )
        facts = TensorEntry(FACTS, 'uint8', (len(self.encoded_facts),), facts_checksum)
        about = self.name, self.boundary, self.fingerprint, self.created
        return Manifest(*about, entries, facts)
