"""Allocation of rows, lowest first, so that the rows in use can be read as one view."""

from __future__ import annotations

import heapq

from embodied_kv.errors import ErrorCode


class OutOfRowsError(RuntimeError):
    """Fewer rows are free than requested; the message names what holds the others."""

    code = ErrorCode.NO_ROOM


class FreeRows:
    """The free rows of an arena. generation[row]: number of allocations of the row."""

    def __init__(self, rows: int) -> None:
        self._free = list(range(rows))
        self._is_free = [True] * rows
        self.generation = [0] * rows

    def __len__(self) -> int:
        """Return the number of free rows."""
        return len(self._free)

    def __contains__(self, row: int) -> bool:
        return self._is_free[row]

    def allocate(self) -> int:
        """Return the lowest free row in its next generation. Raises IndexError if none is free."""
        row = heapq.heappop(self._free)
        self._is_free[row] = False
        self.generation[row] += 1
        return row

    def free(self, row: int) -> None:
        """Free a row. Raises ValueError if it is free already."""
        if self._is_free[row]:
            raise ValueError(f'row {row} is free already')
        self._is_free[row] = True
        heapq.heappush(self._free, row)
