"""A capsule: everything that the next step of a session depends on, frozen at a boundary.

It knows names, tensors and plain facts. It does not know models, rows or streams: what a part of
the engine puts in, that part takes out again.

Source: Execution-State Capsules, section 3.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from embodied_kv.capsule.facts import CapsuleError, Fact, encode, facts_of
from embodied_kv.capsule.manifest import Boundary, Manifest, describe

__all__ = ['Boundary', 'Capsule', 'CapsuleError', 'Fact', 'facts_of']


@dataclass(frozen=True, eq=False)
class Capsule:
    """tensors: by 'part/name', bytes as they were, on one device. facts: by part, plain values.

    fingerprint: of all that the tensors mean nothing without (weights, dtype, kernels, layout).
    created: s since the epoch.
    """

    name: str
    boundary: Boundary
    fingerprint: str
    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Fact]
    created: float = field(default_factory=time.time)

    @cached_property
    def encoded_facts(self) -> bytes:
        """All facts as JSON; made once, by whoever asks first: not on the engine's thread.

        Raises CapsuleError as `facts.encode`.
        """
        return encode(self.name, self.facts)

    @cached_property
    def bytes(self) -> int:
        """Of the file that holds it: header, tensors and facts. Raises as `encoded_facts`."""
        return self.manifest({}, 0).bytes

    def manifest(self, checksums: Mapping[str, int], facts_checksum: int) -> Manifest:
        """As `manifest.describe`."""
        facts = len(self.encoded_facts), facts_checksum
        about = self.name, self.boundary, self.fingerprint, self.created
        return describe(*about, self.tensors, checksums, *facts)
