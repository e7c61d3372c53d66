"""A named computation over buffers.

Knows a name, the closed set of memory that a computation reads and writes, and how to run it
again. Does not know what it computes, nor when it should.
"""

from __future__ import annotations

from collections.abc import Iterable

from embodied_kv.runtime.buffer import Buffer, Buffers
from embodied_kv.runtime.capture import Computation, Pool, Replayable


class Graph:
    """Made by `capture` or `adopt`, then only replayed.

    The buffers are all that it writes, and all that it reads but for constants (weights, tables).
    Two graphs that share a buffer hand a value over: what one replay writes, the next one reads.

    replays: how many so far.
    """

    def __init__(self, name: str, work: Replayable, buffers: Iterable[Buffer]) -> None:
        self.name, self.buffers, self.replays = name, Buffers(buffers), 0
        self._work = work

    @classmethod
    def capture(
        cls,
        name: str,
        fn: Computation,
        buffers: Iterable[Buffer],
        pool: Pool,
        reads: Iterable[Buffer] = (),
        stores: Iterable[Buffer] = (),
    ) -> Graph:
        """A CUDA graph on a CUDA pool, `fn` itself on a CPU; the buffers keep their bytes.

        reads: further ones, that it does not write. stores: further ones that it writes, but not
        while it is captured. Raises what `Pool.capture` raises.
        """
        written, stored = Buffers(buffers), Buffers(stores)
        return cls(name, pool.capture(fn, written, stored), (*written, *stored, *reads))

    @classmethod
    def adopt(cls, name: str, work: Replayable, buffers: Iterable[Buffer]) -> Graph:
        """One that was captured elsewhere, over these buffers.

        Raises TypeError for what cannot be replayed.
        """
        if not callable(getattr(work, 'replay', None)):
            raise TypeError(f'graph {name!r} needs a replay(), which {type(work).__name__} lacks')
        return cls(name, work, buffers)

    def replay(self) -> None:
        """Runs it over what its buffers hold now, on the current stream.

        Raises Moved, before anything runs, if a buffer was rebound.
        """
        self.buffers.check()
        self._work.replay()
        self.replays += 1
