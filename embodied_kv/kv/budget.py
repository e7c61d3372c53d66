"""One budget for all KV of a device: frames, compressed rows, streams, planners, memory, capsules.

Every pool claims bytes before it writes, so the reserved bytes never exceed the budget, at any
moment and with any number of threads. A pool may have a floor: bytes that are kept for it, so that
a claim within them is granted at once and evicts nothing. Frames have a floor.

Locks: a caller may hold the locks of the claiming pool during a claim. `_lock` is held only to
count; evictions run without it.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from embodied_kv.errors import CodedError, ErrorCode
from embodied_kv.kv.eviction import EvictionOrder
from embodied_kv.kv.pool import Evictable, Pool

MIB = 2**20
ATTEMPTS = 2  # failed evictions in a row (all chosen offers in use) after which a claim fails


class OverBudgetError(CodedError):
    """The budget has no room for a claim, and evictions cannot make any."""

    code = ErrorCode.NO_ROOM


@dataclass(frozen=True)
class PoolBytes:
    """The numbers of a pool, as in `Pool`. floor: bytes that are kept free for it."""

    name: str
    bytes: int
    bytes_used: int
    bytes_reserved: int
    floor: int


@dataclass(frozen=True)
class OwnEviction:
    """The KV that a pool evicts for its own claim, by its own rule.

    bytes: at most. cost: time (s) to compute all of it again; 0: unknown. idle: time (s) since the
    last use of the KV that is evicted first. give: evicts a number of bytes and returns the bytes
    freed, as `Evictable.evict`.
    """

    bytes: int
    cost: float
    idle: float
    give: Callable[[int], int]


class EvictionPlan:
    """Predicts what the eviction of several offers frees together, before any of them is evicted.

    spare: bytes of each pool above its floor, which other pools may get.
    """

    def __init__(self, spare: Mapping[Pool, int]) -> None:
        self._spare = +Counter(spare)  # drops pools below their floor
        self._left: dict[tuple[Pool, int], int] = {}  # row -> offers that still hold it

    def add(self, pool: Pool, offer: Evictable) -> int:
        """Add an offer, and return the bytes that other pools gain; 0: the offer is not added.

        A row that several offers hold counts once, with the last of them.
        """
        freed, left = Counter({pool: offer.own}), {}
        for held in offer.holds:
            row = held.pool, held.row
            left[row] = min(self._left.get(row, held.holders), held.holders) - 1
            freed[held.pool] += held.bytes if left[row] == 0 else 0
        gained = {pool: min(size, self._spare[pool]) for pool, size in freed.items()}
        if not any(gained.values()):
            return 0
        self._left |= left
        self._spare -= Counter(gained)
        return sum(gained.values())


class KvBudget:
    """The pools of one device under one budget.

    capacity: upper bound (bytes) of the reserved bytes of all pools together; infinite: only the
    bounds of each pool apply. order: what is evicted first, or the path of its file, as in
    `EvictionOrder.read`. evictions: number of evictions by pool name. Raises ValueError for an
    invalid capacity or file.
    """

    def __init__(self, capacity: float = math.inf, order: EvictionOrder | str = '') -> None:
        if capacity < 0:
            raise ValueError(f'capacity must be at least 0 bytes (got {capacity})')
        self.capacity = capacity
        self._order = EvictionOrder.read(order) if isinstance(order, str) else order
        self._lock = threading.Lock()
        self._floors: dict[Pool, int] = {}  # replaced, never changed: read without the lock
        self._claims: Counter[Pool] = Counter()  # bytes granted and not allocated yet
        self.evictions: Counter[str] = Counter()

    # ------------------------------------------------------------------ pools

    def join(self, pool: Pool, floor: int = 0) -> None:
        """Count a pool from now on. Raises OverBudgetError without room for it or its floor."""
        with self._lock:
            needed = max(floor, pool.bytes_reserved) + sum(map(self._kept_for, self._floors))
            if needed > self.capacity:
                raise OverBudgetError(
                    f'{pool.name}: the KV budget must be at least {_mib(needed)} (got '
                    f'{_mib(self.capacity)}); raise engine.kv_budget_mib'
                )
            self._floors = {**self._floors, pool: floor}

    def leave(self, pool: Pool) -> None:
        """Stop counting a pool."""
        with self._lock:
            self._floors = {p: floor for p, floor in self._floors.items() if p is not pool}

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Return the pools in the order in which they joined."""
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
        evicts: bool = True,
    ) -> Iterator[None]:
        """Reserve `size` more bytes for a pool, which allocates them within the context.

        cost: time (s) to compute them again, 0: unknown; only KV that is worth no more per byte is
        evicted. wait: also evict KV that must first be copied elsewhere. own: given the bytes that
        are lacking, returns the pool's eviction for its own claim, if that differs from its offers
        to others. evicts: False to claim free bytes only. Raises OverBudgetError; if all evictions
        together are too little, nothing is evicted.
        """
        if self.capacity == math.inf:
            yield
            return
        most = math.inf if cost == math.inf else self.worth(pool, size, cost)
        in_vain = 0
        while (lacking := self._grant(pool, size)) > 0:
            going = self._least(pool, size, lacking, most, wait, own(lacking)) if evicts else []
            in_vain = 0 if self._evict(going) else in_vain + 1
            if not going or in_vain == ATTEMPTS:
                raise OverBudgetError(self._refusal(pool, size, lacking))
        try:
            yield
        finally:
            with self._lock:
                self._claims[pool] -= size
                self._claims += Counter()  # drops pools without a claim

    def worth(self, pool: Pool, size: int, cost: float) -> float:
        """Return the worth (s per byte) of keeping `size` bytes of a pool."""
        return self._order.worth(pool.name, size, cost)

    def worths(
        self, pool: Pool, sizes: NDArray[np.int64], costs: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return `worth` of several things of a pool, float64 [n]."""
        return self._order.worths(pool.name, sizes, costs)

    def _grant(self, pool: Pool, size: int) -> float:
        """Grant a claim and return 0, or return the bytes that are lacking."""
        with self._lock:
            own, floor = self._reserved(pool) + size, self._floors.get(pool, 0)
            others = sum(self._kept_for(other) for other in self._floors if other is not pool)
            lacking = others + max(own, floor) - self.capacity
            if own > floor and lacking > 0:
                return lacking
            self._claims[pool] += size
            return 0

    def _reserved(self, pool: Pool) -> int:
        # Claims first: bytes that move from a claim into a pool count twice rather than never.
        claims = self._claims[pool]
        return claims + pool.bytes_reserved

    def _kept_for(self, pool: Pool) -> int:
        """Return the bytes that other pools cannot use."""
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
        """Return the offers of the lowest worth that free enough; [] if all together do not.

        The claimant's own eviction covers what the offers of lower worth leave lacking.
        """
        floors = self._floors
        spare = {pool: self._reserved(pool) - floor for pool, floor in floors.items()}
        spare[claimant] = spare.get(claimant, 0) + size
        going, chosen = EvictionPlan(spare), []
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
        if own is not None and 0 < lacking <= given:
            share = math.ceil(lacking)
            chosen.append((claimant, Evictable(share, own.cost, partial(own.give, share))))
            lacking = 0
        return chosen if lacking <= 0 else []

    def _evict(self, offers: list[tuple[Pool, Evictable]]) -> int:
        """Evict, and return the number of successes; other offers came into use or were gone."""
        went = Counter(pool.name for pool, offer in offers if offer.evict() > 0)
        self.evictions += went
        return went.total()

    def _refusal(self, pool: Pool, size: int, lacking: float) -> str:
        held = ', '.join(f'{p.name} {_mib(p.bytes_reserved)}' for p in self.pools)
        return (
            f'{pool.name}: no room for {_mib(size)}, {_mib(lacking)} of a budget of '
            f'{_mib(self.capacity)} are lacking and cannot be evicted ({held}); unpin or drop '
            'capsules, end streams, or raise engine.kv_budget_mib'
        )

    # ------------------------------------------------------------------ numbers and invariants

    def stats(self) -> tuple[PoolBytes, ...]:
        return tuple(
            PoolBytes(p.name, p.bytes, p.bytes_used, p.bytes_reserved, floor)
            for p, floor in self._floors.items()
        )

    def __str__(self) -> str:
        """Return the bytes in use by pool name, for the user."""
        sizes: Counter[str] = Counter()
        for pool in self.pools:
            sizes[pool.name] += pool.bytes_used
        used = ', '.join(f'{name} {_mib(size)}' for name, size in sizes.items())
        bound = '' if self.capacity == math.inf else f' of {_mib(self.capacity)}'
        return f'{_mib(self.bytes_used)}{bound} in use: {used}'

    @property
    def bytes(self) -> int:
        """Return the bytes that all pools have allocated."""
        return sum(pool.bytes for pool in self.pools)

    @property
    def bytes_used(self) -> int:
        """Return the bytes of all pools in use."""
        return sum(pool.bytes_used for pool in self.pools)

    def check_integrity(self) -> None:
        """Raise AssertionError with the invariant that is violated, of a pool or of the budget."""
        for pool in self.pools:
            pool.check_integrity()
        with self._lock:
            kept = [(p.name, max(p.bytes_reserved, floor)) for p, floor in self._floors.items()]
            total = sum(size for _, size in kept)
            assert total <= self.capacity, f'{kept} are {total} of {self.capacity} bytes'


def _mib(size: float) -> str:
    return f'{size / MIB:.2f} MiB' if size >= MIB / 100 else f'{size:.0f} bytes'
