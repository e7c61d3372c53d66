"""The segments whose KV is computed together, and that KV.

Knows segments and the shapes of KV. Does not know how it is computed or kept.

Source: KEEP, section 4.1: memory of mixed granularity.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

from torch import Tensor

from embodied_kv.memory.segment import Segment


@dataclass(frozen=True)
class Unit:
    """Segments in the order in which their KV is computed, each seeing those before it.

    A static group is a unit as a whole, a segment of a dynamic group is one by itself. group: the
    group it comes from. score: of a retrieval. Raises ValueError for no segments.
    """

    segments: tuple[Segment, ...]
    group: int = field(default=0, compare=False)
    score: float = field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        if not self.segments:
            raise ValueError('a unit needs a segment')

    @property
    def key(self) -> str:
        """32 hex digits from what the KV is computed from: the `memory_id` of the paper.

        Whatever is kept under a key is never out of date: a segment that changes changes it.
        """
        content = [(s.id, s.kind, s.text) for s in self.segments]
        return hashlib.blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(segment.id for segment in self.segments)


@dataclass(frozen=True, eq=False)
class UnitKv:
    """The KV of a unit, to be kept.

    k, v: [layers, kv_heads, tokens, head_dim], one dtype; k as computed from position 0 on.
    lengths: tokens of each segment of the unit, in order.
    """

    unit: Unit
    k: Tensor
    v: Tensor
    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        k, v = self.k, self.v
        if k.ndim != 4 or not k.numel() or (k.shape, k.dtype) != (v.shape, v.dtype):
            raise ValueError(
                f'k {list(k.shape)} {k.dtype} and v {list(v.shape)} {v.dtype} are not both '
                '[layers, kv_heads, tokens, head_dim]'
            )
        if len(self.lengths) != len(self.unit.segments) or sum(self.lengths) != k.shape[2]:
            raise ValueError(
                f'lengths {self.lengths} of {len(self.unit.segments)} segments do not share '
                f'{k.shape[2]} tokens'
            )
