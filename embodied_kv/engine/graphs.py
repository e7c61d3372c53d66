"""The engine's computations as graphs, one per kind and bucket, captured before the first frame.

Knows keys and the device's pool. Does not know what is computed. Nothing is captured later: a
shape without a graph is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum

import torch

from embodied_kv.runtime.buffer import Buffer, Buffers
from embodied_kv.runtime.capture import Computation, Pool
from embodied_kv.runtime.compiled import Compiler
from embodied_kv.runtime.graph import Graph
from embodied_kv.runtime.shape_key import ShapeKey
from embodied_kv.runtime.variants import Variants

MAX_GRAPHS = 8192


class Kind(IntEnum):
    """What a graph computes."""

    ENCODE_IMAGES = 1  # images -> tokens
    PREFILL = 2  # tokens -> a prefix row
    DENOISE = 3  # one Euler step
    EXTEND = 4  # a query or a token per stream -> logits
    SCORED_PREFILL = 5  # a prefill, and what its text attends to
    SCORED_EXTEND = 6  # an extension, and what its query attends to


class Graphs:
    """All graphs of one engine. watched: see `runtime.capture.Pool`.

    compiler: None where nothing is compiled.
    """

    def __init__(
        self,
        device: str | torch.device,
        watched: bool = False,
        compiler: Compiler | None = None,
    ) -> None:
        self.pool, self._compiler = Pool(device, watched), compiler
        self._variants = Variants(MAX_GRAPHS)
        self._compiled: dict[ShapeKey, Graph] = {}

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
        tokens: int = 0,
    ) -> None:
        """rows, tokens: the bucket, slots and tokens of each. Raises as `Graph.capture` does."""
        key = ShapeKey.of(kind=kind, rows=rows, tail=tokens)
        graph = Graph.capture(f'{kind.name.lower()} {rows}x{tokens}', fn, writes, self.pool, reads)
        if self._variants.add(key, graph) is not None:
            raise ValueError(f'more than {MAX_GRAPHS} graphs: raise engine.batch_multiple')

    def compile(
        self,
        kind: Kind,
        fn: Computation,
        writes: Sequence[Buffer],
        reads: Iterable[Buffer],
        *,
        rows: int,
        tokens: int = 0,
    ) -> None:
        """One more of this bucket, compiled; none where that is not wanted, or cannot be."""
        if self._compiler is None:
            return
        name = f'{kind.name.lower()} {rows}x{tokens}'
        work = self._compiler.compile(name, fn, Buffers(writes))
        if work is not None:
            key = ShapeKey.of(kind=kind, rows=rows, tail=tokens)
            self._compiled[key] = Graph.capture(name, work, writes, self.pool, reads)

    @property
    def compiles(self) -> bool:
        """Whether anything is to be compiled."""
        return self._compiler is not None

    def compiled(self, kind: Kind, *, rows: int, tokens: int = 0) -> Graph | None:
        """The compiled one of exactly this bucket, if there is one."""
        return self._compiled.get(ShapeKey.of(kind=kind, rows=rows, tail=tokens))

    @property
    def compiled_names(self) -> list[str]:
        """What of it is compiled."""
        return [graph.name for graph in self._compiled.values()]

    def get(self, kind: Kind, *, rows: int, tokens: int = 0) -> Graph:
        """Of exactly this bucket. Raises MissingVariant."""
        return self._variants.get(ShapeKey.of(kind=kind, rows=rows, tail=tokens))

    @property
    def buffers(self) -> list[Buffer]:
        """All that the graphs read or write, but for weights and tables."""
        graphs = (*map(self._variants.get, self._variants.keys()), *self._compiled.values())
        return list({b.address: b for graph in graphs for b in graph.buffers}.values())
