"""Which rows are free.

Lowest first, so that the rows in use stay neighbours and are read as one view.
"""

from __future__ import annotations

import heapq

from embodied_kv.errors import ErrorCode


class OutOfRows(RuntimeError):
    """There are not as many rows as are wanted; the message says what holds them."""

    code = ErrorCode.NO_ROOM


class FreeRows:
    """The free rows of an arena. `generation[row]` counts how often the row was taken."""

    def __init__(self, rows: int) -> None:
        self._free = list(range(rows))
        self._is_free = [True] * rows
        self.generation = [0] * rows

    def __len__(self) -> int:
        """Free rows."""
        return len(self._free)

    def __contains__(self, row: int) -> bool:
        return self._is_free[row]

    def take(self) -> int:
        """The lowest free row, in its next generation. Raises IndexError if there is none."""
        row = heapq.heappop(self._free)
        self._is_free[row] = False
        self.generation[row] += 1
        return row

    def give(self, row: int) -> None:
        """Returns a row. Raises ValueError if it is free already."""
        if self._is_free[row]:
            raise ValueError(f'row {row} is free already')
        self._is_free[row] = True
        heapq.heappush(self._free, row)
