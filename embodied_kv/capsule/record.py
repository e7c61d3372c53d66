"""A capsule as it is listed. Knows where its copies lie. Does not know its tensors."""

from __future__ import annotations

from dataclasses import dataclass

from embodied_kv.capsule.capsule import Boundary
from embodied_kv.capsule.copies import CapsuleCopy
from embodied_kv.capsule.tiers import Tier


@dataclass(frozen=True)
class CapsuleRecord:
    """A capsule as it is listed.

    bytes: of its file. tier: the fastest that has it. saved: whether the disk has it too.
    age: s since it was made. fits: whether its fingerprint is this engine's.
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
        """now: s since the epoch. fingerprint: of this engine."""
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
