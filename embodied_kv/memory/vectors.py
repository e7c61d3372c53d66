"""Embeddings by id, in one matrix, in the order in which the ids came.

Knows numbers. Does not know what they mean.
"""

from __future__ import annotations

import numpy as np


class Vectors:
    """float32 [n, width], one row for each id. Removed rows stay until they are half of all."""

    def __init__(self, width: int) -> None:
        self._matrix = np.zeros((16, width), np.float32)
        self._ids: list[str | None] = []  # of each row; None: it was removed
        self._rows: dict[str, int] = {}

    @property
    def width(self) -> int:
        return self._matrix.shape[1]

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, id: str) -> bool:
        return id in self._rows

    def __getitem__(self, id: str) -> np.ndarray:
        return self._matrix[self._rows[id]]

    def __setitem__(self, id: str, vector: np.ndarray) -> None:
        """Appends a new id, changes a known one. Raises ValueError for another width, or NaN."""
        vector = np.asarray(vector, np.float32)
        if vector.shape != (self.width,) or not np.isfinite(vector).all():
            raise ValueError(
                f'an embedding here is {self.width} finite numbers, not {vector.shape}'
            )
        if id not in self._rows:
            if len(self._ids) == len(self._matrix):
                self._matrix = np.concatenate([self._matrix, np.zeros_like(self._matrix)])
            self._rows[id] = len(self._ids)
            self._ids.append(id)
        self._matrix[self._rows[id]] = vector

    def __delitem__(self, id: str) -> None:
        self._ids[self._rows.pop(id)] = None
        if len(self._ids) > 2 * max(8, len(self._rows)):
            live = [row for row, name in enumerate(self._ids) if name is not None]
            self._matrix[: len(live)] = self._matrix[live]
            self._ids = [self._ids[row] for row in live]
            self._rows = {name: row for row, name in enumerate(self._ids) if name is not None}

    def order(self, id: str) -> int:
        """Grows with the time at which ids came."""
        return self._rows[id]

    def nearest(self, query: np.ndarray) -> list[tuple[str, float]]:
        """All ids with their inner products with the query, the largest first, ties by order."""
        query = np.asarray(query, np.float32)
        if query.shape != (self.width,):
            raise ValueError(f'a query has {self.width} numbers here, not {query.shape}')
        scores = self._matrix[: len(self._ids)] @ query
        order = np.argsort(-scores, kind='stable')
        found = zip(order.tolist(), scores[order].tolist(), strict=True)
        return [(self._ids[row], score) for row, score in found if self._ids[row] is not None]
