"""The engine's computations as graphs, one per kind and bucket, captured before the first frame.

Knows keys and the device's pool. Does not know what is computed. Nothing is captured later: a
shape without a graph is an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

import torch

from embodied_kv.runtime.buffer import Buffer
from embodied_kv.runtime.capture import Computation, Pool
from embodied_kv.runtime.graph import Graph
from embodied_kv.runtime.shape_key import ShapeKey
from embodied_kv.runtime.variants import Variants

MOST = 8192  # graphs


class Kind(IntEnum):
    """What a graph computes."""

    ENCODE_IMAGES = 1  # images -> tokens
    PREFILL = 2  # tokens -> a prefix row
    DENOISE = 3  # one Euler step
    EXTEND = 4  # a query or a token per stream -> logits
    SCORED_PREFILL = 5  # the same, and what its text pays attention to
    SCORED_EXTEND = 6  # the same, and what a query pays attention to


class Graphs:
    """All graphs of one engine. watched: see `runtime.capture.Pool`."""

    def __init__(self, device: str | torch.device, watched: bool = False) -> None:
        self.pool = Pool(device, watched)
        self._variants = Variants(MOST)

    def __len__(self) -> int:
        return len(self._variants)

    def capture(
        self,
        kind: Kind,
        fn: Computation,
        writes: Iterable[Buffer],
        reads: Iterable[Buffer],
        *,
        rows: int,
        tail: int = 0,
    ) -> None:
        """rows, tail: the bucket, slots and tokens of each. Raises what `Graph.capture` raises."""
        key = ShapeKey.of(kind=kind, rows=rows, tail=tail)
        graph = Graph.capture(f'{kind.name.lower()} {rows}x{tail}', fn, writes, self.pool, reads)
        if self._variants.add(key, graph) is not None:
            raise ValueError(f'more than {MOST} graphs: raise engine.batch_multiple')

    def get(self, kind: Kind, *, rows: int, tail: int = 0) -> Graph:
        """Of exactly this bucket. Raises MissingVariant."""
        return self._variants.get(ShapeKey.of(kind=kind, rows=rows, tail=tail))

    @property
    def buffers(self) -> list[Buffer]:
        """All that the graphs read or write, but for weights and tables."""
        graphs = map(self._variants.get, self._variants.keys())
        return list({b.address: b for graph in graphs for b in graph.buffers}.values())
