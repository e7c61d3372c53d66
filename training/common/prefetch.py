"""Batches made by one thread of their own while the one before is learnt from.

Knows step numbers. Does not know what a batch is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

B = TypeVar('B')
AHEAD = 3  # batches that are made while one is learnt from


def prefetched(make: Callable[[int], B], start: int, stop: int) -> Iterator[B]:
    """make(step) of steps start .. stop - 1, in order. What `make` raises comes at its step."""
    with ThreadPoolExecutor(1) as pool:
        waiting = deque(pool.submit(make, step) for step in range(start, min(start + AHEAD, stop)))
        for step in range(start, stop):
            batch = waiting.popleft().result()
            if step + AHEAD < stop:
                waiting.append(pool.submit(make, step + AHEAD))
            yield batch
