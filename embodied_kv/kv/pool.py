"""The interface of pools: how much KV a pool holds, and what it offers for eviction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from embodied_kv.kv.arena import Arena
from embodied_kv.kv.compressed_arena import CompressedArena


@dataclass(frozen=True)
class HeldRow:
    """A row that is freed when its last holder is evicted.

    bytes: in use by the row. holders: number of offers that must be evicted before it is freed.
    """

    pool: Pool
    row: int
    bytes: int
    holders: int = 1


@dataclass(frozen=True)
class Evictable:
    """An eviction offer: something that a pool can give up now.

    bytes: what the eviction frees of the `bytes_used` of all pools together, if nothing else
    changes before. cost: last measured time (s) to compute it again; 0: unknown. evict: evicts it
    and returns the bytes freed of the `bytes_reserved` of all pools; 0, without any change, if it
    is gone or in use by then. Any thread may call it. idle: time (s) since its last use; 0 also if
    unknown. consumers: the consumers that would read something slower in its place. quick: the
    eviction copies nothing. promised: additional bytes that are reserved for it and not written
    yet. holds: rows, of any pool, that other offers hold as well, or that belong to another pool.
    """

    bytes: int
    cost: float
    evict: Callable[[], int]
    idle: float = 0.0
    consumers: tuple[str, ...] = ()
    quick: bool = True
    promised: int = 0
    holds: tuple[HeldRow, ...] = ()

    @property
    def size(self) -> int:
        """Return what the eviction frees of the `bytes_reserved` of all pools."""
        return self.bytes + self.promised

    @property
    def own(self) -> int:
        """Return the part of `size` in the offering pool that no other offer frees."""
        return self.size - sum(held.bytes for held in self.holds if held.holders == 1)


GONE = Evictable(0, 0.0, lambda: 0)  # in place of an offer that no longer exists


@dataclass(frozen=True, eq=False)
class Offers:
    """The offers of a pool with many things: columns of numbers, and offers made on access.

    sizes: int64 [n], `Evictable.size`. costs, idles: float64 [n], s. make: returns offer i, or
    `GONE`; it takes the locks that it needs.
    """

    sizes: NDArray[np.int64]
    costs: NDArray[np.float64]
    idles: NDArray[np.float64]
    make: Callable[[int], Evictable]

    @classmethod
    def of(cls, offers: Sequence[Evictable] | Offers) -> Offers:
        """Return a sequence of offers as `Offers`."""
        if isinstance(offers, Offers):
            return offers
        facts = np.array([(o.size, o.cost, o.idle) for o in offers]).reshape(-1, 3)
        return cls(facts[:, 0].astype(np.int64), facts[:, 1], facts[:, 2], offers.__getitem__)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, i: int) -> Evictable:
        return self.make(range(len(self))[i])


class Pool(Protocol):
    """Memory for KV. All members may be used from any thread.

    name: shown to the user. bytes: allocated. bytes_used: in use. bytes_reserved: in use, or
    promised to a writer; at least `bytes_used`. The three never wait for a computation.
    """

    @property
    def name(self) -> str: ...

    @property
    def bytes(self) -> int: ...

    @property
    def bytes_used(self) -> int: ...

    @property
    def bytes_reserved(self) -> int: ...

    def evictable(self) -> Sequence[Evictable] | Offers:
        """Return an offer for everything that could be evicted now; nothing of it is in use."""

    def check_integrity(self) -> None:
        """Raise AssertionError with the invariant that is violated."""


class ArenaPool:
    """Base of the pools whose KV lies in an arena.

    lock: the lock that all pools of a manager share.
    """

    name: ClassVar[str]

    def __init__(self, arena: Arena | CompressedArena, lock: RLock) -> None:
        self.arena, self._lock = arena, lock

    @property
    def bytes(self) -> int:
        return self.arena.bytes

    @property
    def bytes_used(self) -> int:
        return self.arena.bytes_used
