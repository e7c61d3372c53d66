"""Whatever holds memory for KV, behind one interface: how much, and what could be given up.

Knows bytes and seconds. Does not know what lies in a pool, nor who decides what has to go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Held:
    """A row that goes as soon as nothing holds it any more.

    pool, row: which. bytes: of it, in use. holders: how many offers have to go before it does.
    """

    pool: Pool
    row: int
    bytes: int
    holders: int = 1


@dataclass(frozen=True)
class Evictable:
    """Something that a pool could do without now.

    bytes: what its end frees of the `bytes_used` of all pools together, if nothing else happens
    before. cost: s to make it again, as last measured; 0: not known. evict: ends it and returns
    the bytes that it freed of the `bytes_reserved` of all pools; where it is gone meanwhile, or in
    use, it returns 0 and touches nothing. Any thread may call it. idle: s since it was last used;
    0 also where that is not known. consumers: who would read something slower in its place. quick:
    its end copies nothing. promised: bytes beside, that it was promised and has not written yet.
    holds: rows, of any pool, that other offers hold, too, or that are another pool's.
    """

    bytes: int
    cost: float
    evict: Callable[[], int]
    idle: float = 0.0
    consumers: tuple[str, ...] = ()
    quick: bool = True
    promised: int = 0
    holds: tuple[Held, ...] = ()

    @property
    def size(self) -> int:
        """What its end frees of the `bytes_reserved` of all pools together."""
        return self.bytes + self.promised

    @property
    def own(self) -> int:
        """Of these, what lies in its own pool and no other offer frees."""
        return self.size - sum(held.bytes for held in self.holds if held.holders == 1)


GONE = Evictable(0, 0.0, lambda: 0)  # what there was an offer of, and is no more


@dataclass(frozen=True, eq=False)
class Offers(Sequence[Evictable]):
    """Offers of a pool of many things: their numbers are columns, and each is made when asked for.

    sizes: int64 [n], `Evictable.size` of each. costs, idles: float64 [n], s. make: the i-th of
    them, or `GONE`; it takes the locks that it needs.
    """

    sizes: NDArray[np.int64]
    costs: NDArray[np.float64]
    idles: NDArray[np.float64]
    make: Callable[[int], Evictable]

    @classmethod
    def of(cls, offers: Sequence[Evictable]) -> Offers:
        """Return the offers as they are, with their numbers as columns."""
        if isinstance(offers, Offers):
            return offers
        facts = np.array([(o.size, o.cost, o.idle) for o in offers]).reshape(-1, 3)
        return cls(facts[:, 0].astype(np.int64), facts[:, 1], facts[:, 2], offers.__getitem__)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, i: int) -> Evictable:
        return self.make(range(len(self))[i])


class Pool(Protocol):
    """Memory for KV. Any thread may ask.

    name: for the user. bytes: held of the machine. bytes_used: of these, in use. bytes_reserved:
    in use, or promised to who writes now: never less than what is in use. The three wait for
    nobody who computes.
    """

    name: str

    @property
    def bytes(self) -> int: ...

    @property
    def bytes_used(self) -> int: ...

    @property
    def bytes_reserved(self) -> int: ...

    def evictable(self) -> Sequence[Evictable]:
        """All that could go now, as `Offers` where that may be many things.

        Nothing of it is read, written or waited for by anybody.
        """

    def check_integrity(self) -> None:
        """Raises AssertionError with the broken law."""
