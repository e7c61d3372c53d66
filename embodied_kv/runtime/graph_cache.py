"""One computation for each exact shape, replayed over memory that never moves.

`GraphCache` maps a shape to a `Graph`. It captures the graph once, at configure: a CUDA graph on a
CUDA device, the function itself elsewhere. A graph also has compiled code if a `Compiler` has a
package for its shape. Nothing is captured or evicted later, so a missing shape is an error.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch

from embodied_kv.runtime.background import Background, compile_now
from embodied_kv.runtime.buffer import Buffer, Buffers
from embodied_kv.runtime.compiled import Compiler, Computation
from embodied_kv.runtime.inputs import StepInputs
from embodied_kv.runtime.stream import Stream

CAPACITY = 8192  # graphs of a cache


class MissingShapeError(LookupError):
    """No graph has this shape; the message lists the shapes of its kind."""


class Shape(NamedTuple):
    """The kind of a computation and its sizes; 0 for an unused size."""

    kind: str
    rows: int
    tokens: int = 0

    def __str__(self) -> str:
        return f'{self.kind} {self.rows}x{self.tokens}'


class View(Protocol):
    """The argument of a computation, which is bound to memory before each replay.

    fits_compiled: whether compiled code computes what is bound now.
    """

    inputs: StepInputs

    @property
    def buffers(self) -> list[Buffer]: ...

    @property
    def fits_compiled(self) -> bool: ...


V = TypeVar('V', bound=View)


class Graph(Generic[V]):
    """The computation of one shape. `GraphCache.capture` makes it; after that it is only replayed.

    Two graphs can share a buffer: one replay writes what a replay of the other one reads.

    name: its shape as text. view: bound before a replay. buffers: all that it writes, and all that
    it reads except constants (weights, tables). replays: number of replays so far.
    compiled_replays: how many of them ran compiled code.
    """

    def __init__(
        self,
        name: str,
        view: V,
        buffers: Buffers,
        run: Computation,
        run_compiled: Computation | None,
    ) -> None:
        self.name, self.view, self.buffers = name, view, buffers
        self.replays = self.compiled_replays = 0
        self._run, self._run_compiled = run, run_compiled

    @property
    def is_compiled(self) -> bool:
        """Whether it has compiled code."""
        return self._run_compiled is not None

    def replay(self) -> None:
        """Run over what the buffers hold now, on the current stream.

        Raises BufferMovedError, before anything runs, if a buffer was rebound.
        """
        self.buffers.require_unmoved()
        if self._run_compiled is not None and self.view.fits_compiled:
            self._run_compiled()
            self.compiled_replays += 1
        else:
            self._run()
        self.replays += 1


class GraphCache:
    """The graphs of one device, by shape.

    On CUDA they share one pool of scratch memory. So they must be replayed one after another, on
    one stream, and they leave results in their buffers only.

    compiler: compiles the shapes in its `names`; None: nothing is compiled. captures: number of
    captures so far; replays do not change it. watch: context manager, made with the buffers that a
    computation declares to write, for a first run before its capture; None: no such run on a CPU.
    """

    watch: ClassVar[type[Any] | None] = None

    def __init__(
        self, device: str | torch.device = 'cpu', compiler: Compiler | None = None
    ) -> None:
        self.captures, self._compiler = 0, compiler
        self._graphs: dict[Shape, Graph[Any]] = {}
        self._unbound: dict[str, np.ndarray] = {}  # inputs of pending computations, by name
        self._stream = Stream.on(device)  # memory of a pool is reused on the same stream only
        self._pool = torch.cuda.graph_pool_handle() if self._stream.cuda is not None else None

    def __len__(self) -> int:
        return len(self._graphs)

    def __getitem__(self, shape: Shape) -> Graph[Any]:
        """Return the graph of exactly this shape. Raises MissingShapeError."""
        if shape not in self._graphs:
            of_kind = [str(known) for known in self._graphs if known.kind == shape.kind]
            raise MissingShapeError(
                f'shape must be captured at configure (got {shape}); captured of its kind: '
                f'{", ".join(of_kind) or "none"}'
            )
        return self._graphs[shape]

    @property
    def shapes(self) -> list[Shape]:
        """Return all shapes, in the order of their captures."""
        return list(self._graphs)

    @property
    def buffers(self) -> list[Buffer]:
        """Return all that the graphs read or write except constants."""
        return list({b.address: b for g in self._graphs.values() for b in g.buffers}.values())

    # ---------------------------------------------------------------------- capture

    def capture(
        self,
        shape: Shape,
        work: Callable[[V], object],
        view: V,
        *,
        writes: Sequence[Buffer],
        stores: Sequence[Buffer] = (),
        reads: Sequence[Buffer] = (),
    ) -> Graph[V]:
        """Capture `work(view)` as the graph of this shape; the written buffers keep their bytes.

        On CUDA the computation runs before it is captured, because its first runs allocate,
        compile and tune, which cannot be captured. On a CPU it runs only with `watch`.

        Args:
            shape: The key; each shape is captured once.
            work: The computation, which returns None.
            view: Its argument, bound to no row.
            writes: All that it writes except what the view stores into rows of `stores`.
            stores: Memory with these rows; it is not copied.
            reads: Further buffers that it reads, in addition to the view's.

        Raises:
            ValueError: The shape is captured already, the cache is full, or a buffer has a second
                name or another device.
            TypeError: The computation returns a result.
            BufferMovedError: It rebinds a buffer.
        """
        if shape in self._graphs:
            raise ValueError(f'shape must be captured once (got {shape} again)')
        if len(self) == CAPACITY:
            raise ValueError(f'a cache must have at most {CAPACITY} graphs (got {shape} as well)')
        view.inputs.send()  # nothing is bound: the computation may run, and it writes no row
        name, fn, written = str(shape), partial(work, view), Buffers(writes)
        read = (b for b in (*reads, *view.buffers) if b.name not in written)
        run, run_compiled = self._capture(fn, written, stores), None
        if self._compiler is not None and name in self._compiler.names:
            pending = len(self._compiler.pending)
            package = self._compiler.compile(name, fn, written)
            if len(self._compiler.pending) > pending:
                self._unbound[name] = view.inputs.saved()
            run_compiled = package and self._capture(package, written, stores)
        graph = Graph(name, view, Buffers([*written, *stores, *read]), run, run_compiled)
        self._graphs[shape] = graph
        return graph

    @torch.inference_mode()
    def _capture(self, fn: Computation, written: Buffers, stores: Sequence[Buffer]) -> Computation:
        """Return a function that runs `fn` again."""
        declared = Buffers([*written, *stores])
        for buffer in declared:
            if buffer.device.type != 'cpu' and buffer.device != self._stream.device:
                raise ValueError(
                    f'buffer {buffer.name!r} must be on {self._stream.device}, the device of its '
                    f'graph (got {buffer.device})'
                )
        run: Computation = partial(run_eagerly, fn)
        if self.watch is not None or self._stream.cuda is not None:
            with self._capture_stream():
                # Each run begins with the same bytes, because counters may have an upper bound.
                with written.preserved(), self.watch(declared) if self.watch else nullcontext():
                    _warm_up(fn, written)
                if self._stream.cuda is not None:
                    with written.preserved():
                        _warm_up(fn, written)
                    run = self._record(fn)
        self.captures += 1
        return run

    def _record(self, fn: Computation) -> Computation:
        """Capture as `torch.cuda.graph`, but without freeing memory and waiting each time.

        Calls that other threads make during the capture, to copy or to allocate, do not fail.
        """
        if not self.captures:
            gc.collect()
            torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode='thread_local')
        try:
            fn()
        finally:
            graph.capture_end()
        return partial(_replay_captured, graph, fn)

    @contextmanager
    def _capture_stream(self) -> Iterator[None]:
        """Use the pool's stream, after what was launched before and before what comes next."""
        outside = Stream.current(self._stream.device)
        self._stream.wait(outside.record())
        try:
            with self._stream.use():
                yield
        finally:
            outside.wait(self._stream.record())

    # ---------------------------------------------------------------------- compiled code

    @property
    def has_compiler(self) -> bool:
        """Whether some shapes are to be compiled."""
        return self._compiler is not None

    @property
    def compiled_names(self) -> list[str]:
        """Return the names of the graphs with compiled code."""
        return [graph.name for graph in self._graphs.values() if graph.is_compiled]

    @property
    def packages(self) -> dict[str, Path]:
        """Return the package of each graph with compiled code, by its name."""
        return {} if self._compiler is None else dict(self._compiler.packages)

    def compile_later(
        self, say: Callable[[str], object], submit: Callable[[Callable[[], None]], object]
    ) -> Background | None:
        """Return a paused process that compiles what is missing; None if nothing is.

        The next configure loads its packages. say: receives a line for the user. submit: runs a
        function between two steps of the thread that replays, and waits for it; it traces each
        pending computation before the process starts.
        """
        if (c := self._compiler) is None or not (c.missing or c.pending):
            return None

        def prepare() -> bool:
            if c.pending:
                submit(self._trace_next)
            return bool(c.pending)

        return Background(c.missing, c.folder, c.threads, c.lower, say, prepare=prepare)

    @torch.inference_mode()
    def _trace_next(self) -> None:
        """Trace the oldest pending computation from the state in which it was captured.

        The step before it has ended. Inputs are bound to no row, and counters begin at 0.
        """
        compiler = self._compiler
        assert compiler is not None
        wanted = compiler.pending[0]
        graph = next(graph for graph in self._graphs.values() if graph.name == wanted.name)
        graph.view.inputs.restore(self._unbound.pop(wanted.name))
        with wanted.buffers.preserved():
            for buffer in wanted.buffers:
                buffer.tensor.zero_()
            compiler.trace_next()

    def compile_now(self, say: Callable[[str], object]) -> list[str]:
        """Compile what is missing, for the next configure, and return the names of what succeeded.

        say: receives a line for the user, on several threads.
        """
        if (c := self._compiler) is None or not c.missing:
            return []
        say(f'compiling {len(c.missing)} computations, once: half a minute of a core each')
        return compile_now(c.missing, c.folder, c.threads, c.lower, say)


def run_eagerly(fn: Computation) -> None:
    with torch.inference_mode():
        fn()


def _replay_captured(graph: torch.cuda.CUDAGraph, fn: Computation) -> None:
    """Replay a graph. It knows the memory of `fn` by address only, so `fn` is kept with it."""
    graph.replay()


def _warm_up(fn: Computation, written: Buffers) -> None:
    if fn() is not None:
        raise TypeError('a computation must return None; write its results into its buffers')
    written.require_unmoved()
