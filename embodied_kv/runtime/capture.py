"""Turning a function into something that is replayed: a CUDA graph, or the function itself.

Knows devices and their scratch memory. Does not know what is computed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch

from embodied_kv.runtime.buffer import Buffers
from embodied_kv.runtime.stream import Stream
from embodied_kv.runtime.writes import DeclaredWrites

Computation = Callable[[], object]  # it returns None, which `Pool.capture` checks


class Replayable(Protocol):
    """What can be run again over the same memory; a `torch.cuda.CUDAGraph` is one."""

    def replay(self) -> None: ...


@dataclass(frozen=True)
class Eager:
    """Runs the function."""

    fn: Computation

    def replay(self) -> None:
        with torch.inference_mode():
            self.fn()


@dataclass(frozen=True)
class Captured:
    """Runs what was captured. fn: keeps alive what the graph knows by address only."""

    graph: torch.cuda.CUDAGraph
    fn: Computation

    def replay(self) -> None:
        self.graph.replay()


class Pool:
    """Scratch memory of one device, shared by all graphs that are captured into it.

    So they are replayed one after another, on one stream, and leave results in buffers alone.

    watched: whether each computation is run once under watch before it is captured, which proves
    that it writes its buffers alone. captures: how many so far; it stays as it is while graphs are
    only replayed.
    """

    def __init__(self, device: str | torch.device = 'cpu', watched: bool = True) -> None:
        self.captures, self.watched = 0, watched
        self._stream = Stream.on(device)  # memory of a pool is reused on the same stream only
        self._handle = torch.cuda.graph_pool_handle() if self._stream.cuda is not None else None

    @property
    def device(self) -> torch.device:
        return self._stream.device

    @torch.inference_mode()
    def capture(
        self, fn: Computation, buffers: Buffers, stores: Buffers | None = None
    ) -> Replayable:
        """Captures `fn` and leaves the buffers as they were.

        stores: further memory that it writes, but not as its inputs are now; it is not kept.

        On CUDA it runs before that, as first runs allocate, compile and tune, which cannot be
        captured; where nothing is captured it runs only under watch. Raises ValueError for a
        buffer on another device, TypeError for a result, UndeclaredWrite, Moved, and what `fn`
        raises.
        """
        written = Buffers([*buffers, *(stores or ())])
        for buffer in written:
            if buffer.device.type != 'cpu' and buffer.device != self.device:
                raise ValueError(
                    f'buffer {buffer.name!r} is on {buffer.device}, the pool on {self.device}'
                )
        work: Replayable = Eager(fn)
        if self.watched or self._stream.cuda is not None:
            with self._aside():
                # Each run begins where the first does: what a run counts up may have an end.
                with (
                    unchanged(buffers),
                    DeclaredWrites(written) if self.watched else nullcontext(),
                ):
                    _warm_up(fn, buffers)
                if self._stream.cuda is not None:
                    with unchanged(buffers):
                        _warm_up(fn, buffers)
                    work = self._record(fn)
        self.captures += 1
        return work

    def _record(self, fn: Computation) -> Captured:
        """As `torch.cuda.graph`, which would free memory and wait for the device before each.

        Calls that other threads make at that time, to copy or to allocate, are no error of theirs.
        """
        if not self.captures:
            gc.collect()
            torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._handle, capture_error_mode='thread_local')
        try:
            fn()
        finally:
            graph.capture_end()
        return Captured(graph, fn)

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """On the pool's stream, after what was launched before and before what comes next."""
        outside = Stream.current(self.device)
        self._stream.wait(outside.record())
        try:
            with self._stream.use():
                yield
        finally:
            outside.wait(self._stream.record())


def _warm_up(fn: Computation, buffers: Buffers) -> None:
    if fn() is not None:
        raise TypeError('a computation returns nothing: what it makes goes into its buffers')
    buffers.check()


@contextmanager
def unchanged(buffers: Buffers) -> Iterator[None]:
    """Puts the bytes back at the end, if the buffers are still there."""
    kept = [buffer.tensor.clone() for buffer in buffers]
    try:
        yield
    finally:
        for buffer, tensor in zip(buffers, kept, strict=True):
            buffer.write(tensor)
