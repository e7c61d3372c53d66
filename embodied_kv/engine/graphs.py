"""The engine's computations as graphs, one per kind and bucket, captured before the first frame.

Knows shapes, views and the device's pool. Does not know what is computed. Nothing is captured
later: a shape without a graph is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import torch

from embodied_kv.kv.joint import JointView
from embodied_kv.runtime.background import Background, compile_now
from embodied_kv.runtime.buffer import Buffer, Buffers
from embodied_kv.runtime.capture import Pool
from embodied_kv.runtime.compiled import Compiler
from embodied_kv.runtime.graph import Graph
from embodied_kv.runtime.inputs import StepInputs
from embodied_kv.runtime.variants import Shape, Variants

MOST = 8192  # graphs of an engine


class Kind(str, Enum):
    """What a graph computes."""

    __str__ = str.__str__

    ENCODE_IMAGES = 'encode_images'  # pixels -> tokens
    PREFILL = 'prefill'  # tokens -> a prefix row
    START = 'start'  # noise and positions -> what the first Euler step reads
    DENOISE = 'denoise'  # one Euler step
    EXTEND = 'extend'  # a query or a token per stream -> the next token of each, and where it goes
    DRAW = 'draw'  # its logits -> another next token, of streams that are sampled
    SCORED_PREFILL = 'scored_prefill'  # a prefill, and what its text attends to
    SCORED_EXTEND = 'scored_extend'  # an extension, and what its query attends to


class View(Protocol):
    """Of `kv.views`: what is bound to rows before a replay."""

    inputs: StepInputs

    @property
    def buffers(self) -> list[Buffer]: ...

    @property
    def joint(self) -> JointView: ...


V = TypeVar('V', bound=View)


@dataclass(frozen=True, eq=False)
class Bucket(Generic[V]):
    """One size of a kind of work: the view that is bound to rows, and the graph over it.

    compiled: the same work where no slot reads a compressed copy; None where there is none.
    """

    view: V
    graph: Graph
    compiled: Graph | None = None

    def replay(self, whole: bool = True) -> None:
        """Over what its buffers hold. whole: whether no slot reads a compressed copy."""
        (self.graph if self.compiled is None or not whole else self.compiled).replay()


class Graphs:
    """All graphs of one engine. watched: see `runtime.capture.Pool`.

    compiler: for the buckets that are compiled beside; None where nothing is.
    """

    def __init__(
        self,
        device: str | torch.device,
        watched: bool = False,
        compiler: Compiler | None = None,
    ) -> None:
        self.pool, self._compiler = Pool(device, watched), compiler
        self._buckets: Variants[Bucket] = Variants(MOST)

    def __len__(self) -> int:
        """Buckets; one that is compiled has two graphs."""
        return len(self._buckets)

    @property
    def compiles(self) -> bool:
        """Whether anything is to be compiled."""
        return self._compiler is not None

    def capture(
        self,
        shape: Shape,
        work: Callable[[V], None],
        view: V,
        *,
        writes: Sequence[Buffer],
        stores: Sequence[Buffer] = (),
        reads: Sequence[Buffer] = (),
    ) -> Bucket[V]:
        """Makes the bucket of this shape.

        writes: all that it writes but what the view stores into rows of `stores`. reads: further
        ones than the view's. Raises as `Graph.capture` does.
        """
        view.inputs.send()  # nothing is bound: it may run, and no row is written
        written = {buffer.name for buffer in writes}
        reads = [b for b in (*reads, *view.buffers) if b.name not in written]
        graph = Graph.capture(str(shape), partial(work, view), writes, self.pool, reads, stores)
        fast = None
        if self._compiler is not None and str(shape) in self._compiler.names:
            fast = self._compile(shape, work, view.joint, writes, stores, reads)
        bucket = Bucket(view, graph, fast)
        self._buckets.add(shape, bucket)
        return bucket

    def _compile(
        self,
        shape: Shape,
        work: Callable[[JointView], None],
        view: JointView,
        writes: Sequence[Buffer],
        stores: Sequence[Buffer],
        reads: Sequence[Buffer],
    ) -> Graph | None:
        writes = [*writes, *view.own_buffers]
        package = self._compiler.compile(str(shape), partial(work, view), Buffers(writes))
        if package is None:
            return None

        def run() -> None:
            view.prepare()
            package()
            view.keep()

        return Graph.capture(str(shape), run, writes, self.pool, reads, stores)

    def get(self, shape: Shape) -> Bucket:
        """Of exactly this shape. Raises MissingVariant."""
        return self._buckets.get(shape)

    @property
    def shapes(self) -> list[Shape]:
        """Of the buckets there are."""
        return [shape for shape, _ in self._buckets.items()]

    @property
    def packages(self) -> dict[str, Path]:
        """Of what is compiled, by name: where it lies."""
        return {} if self._compiler is None else dict(self._compiler.packages)

    def compile_later(self, say: Callable[[str], object]) -> Background | None:
        """Return a process that compiles what is missing, once it is resumed; None for nothing.

        say: takes a line for the user.
        """
        if self._compiler is None or not (jobs := self._compiler.missing):
            return None
        c = self._compiler
        return Background(jobs, c.folder, c.threads, c.lower, say)

    def compile_now(self, say: Callable[[str], object]) -> list[str]:
        """Compile what is missing, for the next start, and return what of it is compiled.

        say: takes a line for the user, on several threads.
        """
        if self._compiler is None or not (jobs := self._compiler.missing):
            return []
        say(f'compiling {len(jobs)} computations, once: half a minute of a core each')
        c = self._compiler
        return compile_now(jobs, c.folder, c.threads, c.lower, say)

    @property
    def compiled_names(self) -> list[str]:
        """What of it is compiled."""
        return [str(shape) for shape, made in self._buckets.items() if made.compiled is not None]

    @property
    def buffers(self) -> list[Buffer]:
        """All that the graphs read or write, but for weights and tables."""
        buckets = [bucket for _, bucket in self._buckets.items()]
        graphs = [graph for b in buckets for graph in (b.graph, b.compiled) if graph is not None]
        return list({b.address: b for graph in graphs for b in graph.buffers}.values())
