"""One budget for all KV of a device: frames, copies, streams, planners, memory, capsules.

Knows pools, bytes and the order in which KV goes. Does not know what lies in a pool.

Whoever is about to hold more claims it first, so what is reserved never exceeds the budget, at any
moment and with any threads. A pool may have a floor: bytes that nobody else ever takes, so a claim
within it is granted at once and costs nobody anything. Frames have one; beyond it they have room
because language gives way.

Locks: a claim may be made with the locks of the claiming pool held. `_lock` is held only to count;
what goes is evicted without it.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from embodied_kv.errors import CodedError, ErrorCode
from embodied_kv.kv.eviction import EvictionOrder
from embodied_kv.kv.going import Going
from embodied_kv.kv.pool import Evictable, Pool

MIB = 2**20
LOOKS = 2  # at what could go, where all that was to go came into use meanwhile


class OverBudget(CodedError):
    """The budget has no room for so much, and none could be made."""

    code = ErrorCode.NO_ROOM


@dataclass(frozen=True)
class PoolBytes:
    """A pool in numbers, as `Pool`. floor: bytes that are kept free for it."""

    name: str
    bytes: int
    bytes_used: int
    bytes_reserved: int
    floor: int


@dataclass(frozen=True)
class OwnEviction:
    """What a pool gives up for its own claim, by a rule of its own.

    bytes: at most. cost: s to make all of it again, 0: not known. idle: s since the first to go
    was used. give: frees so many bytes and returns how many it freed, as `Evictable.evict`.
    """

    bytes: int
    cost: float
    idle: float
    give: Callable[[int], int]


class KvBudget:
    """The pools of one device under one budget.

    budget: most bytes that are reserved by all pools together; infinite: each pool has its own
    bounds alone. order: what goes first, or the file that says it, as of `EvictionOrder.read`.
    evictions: of each pool, so far. Raises ValueError for a budget or file that is none.
    """

    def __init__(self, capacity: float = math.inf, order: EvictionOrder | str = '') -> None:
        if capacity < 0:
            raise ValueError(f'capacity must be at least 0 bytes (got {capacity})')
        self.capacity = capacity
        self._order = EvictionOrder.read(order) if isinstance(order, str) else order
        self._lock = threading.Lock()
        self._floors: dict[Pool, int] = {}  # replaced, never changed: it is read without the lock
        self._claims: Counter[Pool] = Counter()  # bytes that were granted and are not held yet
        self.evictions: Counter[str] = Counter()

    # ------------------------------------------------------------------ pools

    def join(self, pool: Pool, floor: int = 0) -> None:
        """From now on it counts. Raises OverBudget where it, or its floor, has no room."""
        with self._lock:
            needed = max(floor, pool.bytes_reserved) + sum(map(self._kept_for, self._floors))
            if needed > self.capacity:
                raise OverBudget(
                    f'{pool.name}: a budget of {_mib(self.capacity)} is too small, the least is '
                    f'{_mib(needed)}: raise engine.kv_budget_mib'
                )
            self._floors = {**self._floors, pool: floor}

    def leave(self, pool: Pool) -> None:
        """It counts no more."""
        with self._lock:
            self._floors = {p: floor for p, floor in self._floors.items() if p is not pool}

    @property
    def pools(self) -> tuple[Pool, ...]:
        """In the order in which they came."""
        return tuple(self._floors)

    # ------------------------------------------------------------------ room

    @contextmanager
    def claim(
        self,
        pool: Pool,
        size: int,
        cost: float = math.inf,
        wait: bool = False,
        own: Callable[[float], OwnEviction | None] = lambda lacking: None,
    ) -> Iterator[None]:
        """Room for so many bytes more in a pool, which takes them within the block.

        cost: s to make it again, 0: not known; only what is worth no more by byte goes for it.
        wait: also for what is copied elsewhere before it goes. own: told the bytes that are
        lacking, says what the pool itself gives up for this claim, where that is not what it
        offers to others. Raises OverBudget, and where all that could go is too little, nothing
        has gone.
        """
        if self.capacity == math.inf:
            yield
            return
        most = math.inf if cost == math.inf else self.worth(pool, size, cost)
        in_vain = 0
        while (lacking := self._grant(pool, size)) > 0:
            going = self._least(pool, size, lacking, most, wait, own(lacking))
            in_vain = 0 if self._evict(going) else in_vain + 1
            if not going or in_vain == LOOKS:
                raise OverBudget(self._refusal(pool, size, lacking))
        try:
            yield
        finally:
            with self._lock:
                self._claims[pool] -= size
                self._claims += Counter()  # keeps no pool without a claim

    def worth(self, pool: Pool, size: int, cost: float) -> float:
        """Seconds a byte that it is worth to keep so many, as the order says of the pool."""
        return self._order.worth(pool.name, size, cost)

    def worths(
        self, pool: Pool, sizes: NDArray[np.int64], costs: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return `worth` of many things of a pool, float64 [n]."""
        return self._order.worths(pool.name, sizes, costs)

    def _grant(self, pool: Pool, size: int) -> float:
        """Bytes that are lacking; where none are, the claim is granted."""
        with self._lock:
            own, floor = self._reserved(pool) + size, self._floors.get(pool, 0)
            others = sum(self._kept_for(other) for other in self._floors if other is not pool)
            lacking = others + max(own, floor) - self.capacity
            if own > floor and lacking > 0:
                return lacking
            self._claims[pool] += size
            return 0

    def _reserved(self, pool: Pool) -> int:
        # Claims first: what moves from a claim into a pool meanwhile is counted twice, not never.
        claims = self._claims[pool]
        return claims + pool.bytes_reserved

    def _kept_for(self, pool: Pool) -> int:
        """Bytes that others cannot have."""
        return max(self._reserved(pool), self._floors[pool])

    def _least(
        self,
        claimant: Pool,
        size: int,
        lacking: float,
        most: float,
        wait: bool,
        own: OwnEviction | None,
    ) -> list[tuple[Pool, Evictable]]:
        """What is worth least, until so much would be free; none where all is too little.

        Of its own the claimant gives what others, of which each is worth less, leave lacking.
        """
        floors = self._floors
        spare = {pool: self._reserved(pool) - floor for pool, floor in floors.items()}
        spare[claimant] = spare.get(claimant, 0) + size
        going, chosen = Going(spare), []
        others = [pool for pool in floors if own is None or pool is not claimant]
        offers = heapq.merge(*map(self._order.ranked, others), key=lambda ranked: ranked[0])
        given, own_worth = 0, math.inf
        if own is not None:
            given = own.bytes
            own_worth = self._order.worth(claimant.name, own.bytes, own.cost, own.idle)
        for worth, pool, offer in offers:
            if lacking <= (given if worth >= own_worth else 0) or worth > most:
                break
            if (wait or offer.quick) and (gained := going.add(pool, offer)):
                chosen.append((pool, offer))
                lacking -= gained
        if 0 < lacking <= given:
            share = math.ceil(lacking)
            chosen.append((claimant, Evictable(share, own.cost, partial(own.give, share))))
            lacking = 0
        return chosen if lacking <= 0 else []

    def _evict(self, offers: list[tuple[Pool, Evictable]]) -> int:
        """Ends them -> how many went; the others came into use, or had gone."""
        went = Counter(pool.name for pool, offer in offers if offer.evict() > 0)
        self.evictions += went
        return went.total()

    def _refusal(self, pool: Pool, size: int, lacking: float) -> str:
        held = ', '.join(f'{p.name} {_mib(p.bytes_reserved)}' for p in self.pools)
        return (
            f'{pool.name}: no room for {_mib(size)}, {_mib(lacking)} of a budget of '
            f'{_mib(self.capacity)} are lacking and cannot be given up ({held}): unpin or drop '
            'capsules, end streams, or raise engine.kv_budget_mib'
        )

    # ------------------------------------------------------------------ numbers and laws

    def stats(self) -> tuple[PoolBytes, ...]:
        """Of each pool, as it is now; their sums are what the device holds."""
        return tuple(
            PoolBytes(p.name, p.bytes, p.bytes_used, p.bytes_reserved, floor)
            for p, floor in self._floors.items()
        )

    def __str__(self) -> str:
        """What is in use, for the user; pools of one name are one, as those of many robots."""
        sizes: Counter[str] = Counter()
        for pool in self.pools:
            sizes[pool.name] += pool.bytes_used
        used = ', '.join(f'{name} {_mib(size)}' for name, size in sizes.items())
        bound = '' if self.capacity == math.inf else f' of {_mib(self.capacity)}'
        return f'{_mib(self.bytes_used)}{bound} in use: {used}'

    @property
    def bytes(self) -> int:
        """Held of the device by all pools."""
        return sum(pool.bytes for pool in self.pools)

    @property
    def bytes_used(self) -> int:
        """Of these, in use."""
        return sum(pool.bytes_used for pool in self.pools)

    def check_integrity(self) -> None:
        """Raises AssertionError with the broken law, of each pool and of all together."""
        for pool in self.pools:
            pool.check_integrity()
        with self._lock:
            kept = [(p.name, max(p.bytes_reserved, floor)) for p, floor in self._floors.items()]
            total = sum(size for _, size in kept)
            assert total <= self.capacity, f'{kept} are {total} of {self.capacity} bytes'


def _mib(size: float) -> str:
    return f'{size / MIB:.2f} MiB' if size >= MIB / 100 else f'{size:.0f} bytes'
