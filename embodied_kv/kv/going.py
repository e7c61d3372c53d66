"""What the end of several offers would free together, before any of them ends.

Knows rows that several offers hold, and pools below whose floor nothing is gained. Does not know
what should go, nor in which order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from embodied_kv.kv.pool import Evictable, Pool


class EvictionPlan:
    """spare: of each pool, the bytes that others may have."""

    def __init__(self, spare: Mapping[Pool, int]) -> None:
        self._spare = +Counter(spare)  # what is below its floor has none
        self._left: dict[tuple[Pool, int], int] = {}  # by row: offers that still hold it

    def add(self, pool: Pool, offer: Evictable) -> int:
        """Bytes that others get if it goes beside those before; where there are none, it stays.

        A row counts once, with the last offer that holds it.
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
