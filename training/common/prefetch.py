"""Make batches in a background thread while training uses the previous ones.

This module knows step numbers, not the content of a batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

B = TypeVar('B')
AHEAD = 3  # batches made in advance


def prefetched(make: Callable[[int], B], start: int, stop: int) -> Iterator[B]:
    """Yield make(step) for the steps start .. stop - 1, in order.

    An error of `make` is raised at its step.
    """
    with ThreadPoolExecutor(1) as pool:
        waiting = deque(pool.submit(make, step) for step in range(start, min(start + AHEAD, stop)))
        for step in range(start, stop):
            batch = waiting.popleft().result()
            if step + AHEAD < stop:
                waiting.append(pool.submit(make, step + AHEAD))
            yield batch
