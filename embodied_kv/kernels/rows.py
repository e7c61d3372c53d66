"""Which rows of an arena a batch reads, and how a CPU can read them where they lie.

Knows row ids and lengths. Does not know who owns a row, or why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Run:
    """Neighbouring rows that equally many slots read: one strided view of the arena, no copy.

    mask: additive [rows, 1, queries, longest], None when every key of the view is visible.
    """

    rows: slice
    slots: slice
    longest: int
    mask: Tensor | None


@dataclass(frozen=True)
class Plan:
    """The runs of one layer.

    order: slots sorted by row (None: they are already); back: its inverse.
    """

    runs: tuple[Run, ...]
    order: Tensor | None
    back: Tensor | None


class RowBatch:
    """Slot b of a batch reads row `ids[b]`, of which `lengths[layer, ids[b]]` tokens are valid.

    Binding writes row ids and nothing else: no byte of a cache moves.

    lengths: int32 [layers, rows], the arena's own, host memory. tokens: query tokens per slot.
    causal: the query tokens are the last ones of the row, and token t sees what lies before it;
    otherwise every valid token is visible to every query.
    """

    def __init__(
        self,
        ids: Sequence[int],
        lengths: np.ndarray,
        device_lengths: Tensor,
        tokens: int = 1,
        causal: bool = False,
    ) -> None:
        self.rows = list(ids)
        self.tokens, self.causal = tokens, causal
        self.device_lengths = device_lengths
        self.ids = torch.tensor(self.rows, dtype=torch.int64, device=device_lengths.device)
        self._lengths = lengths[:, self.rows]  # a snapshot [layers, slots]
        self._plans: dict[bytes, Plan] = {}

    @classmethod
    def dense(cls, batch: int, length: int, tokens: int, device: torch.device) -> RowBatch:
        """Rows 0 .. batch-1 of an ordinary contiguous tensor, all of one length."""
        lengths = np.full((1, batch), length, np.int32)
        return cls(range(batch), lengths, torch.from_numpy(lengths).to(device), tokens)

    def __len__(self) -> int:
        return len(self.rows)

    def plan(self, layer: int) -> Plan:
        """How the twin walks this layer; layers of equal lengths share a plan."""
        lengths = self._lengths[min(layer, len(self._lengths) - 1)]
        key = lengths.tobytes()
        if key not in self._plans:
            self._plans[key] = self._make_plan(lengths)
        return self._plans[key]

    def _make_plan(self, lengths: np.ndarray) -> Plan:
        order = np.argsort(self.rows, kind='stable')
        rows, lengths = np.asarray(self.rows)[order], lengths[order]
        unique, first, readers = np.unique(rows, return_index=True, return_counts=True)
        runs = []
        # Within a run, row id minus its rank and the number of readers stay the same.
        keys = zip(unique - np.arange(len(unique)), readers, strict=True)
        for (_, count), group in groupby(enumerate(keys), key=lambda item: item[1]):
            ranks = [rank for rank, _ in group]
            begin = int(first[ranks[0]])
            slots = slice(begin, begin + int(count) * len(ranks))
            valid = lengths[slots][:: int(count)]
            rows_of = slice(int(unique[ranks[0]]), int(unique[ranks[-1]]) + 1)
            runs.append(Run(rows_of, slots, int(valid.max()), self._mask(valid, int(count))))
        if (order == np.arange(len(order))).all():
            return Plan(tuple(runs), None, None)
        return Plan(tuple(runs), torch.from_numpy(order), torch.from_numpy(np.argsort(order)))

    def _mask(self, valid: np.ndarray, readers: int) -> Tensor | None:
        """Additive mask [rows, 1, readers * tokens, longest] over the keys.

        None if all are visible.
        """
        if self.causal and self.tokens > 1:
            hidden_at_end = np.tile(np.arange(self.tokens)[::-1], readers)  # [readers * tokens]
        else:
            hidden_at_end = np.zeros(1, np.int64)
        limit = valid[:, None] - hidden_at_end  # [rows, queries]: keys a query sees
        longest = int(valid.max())
        if (limit == longest).all():
            return None
        visible = np.arange(longest) < limit[:, :, None]
        mask = torch.zeros(visible.shape).masked_fill_(~torch.from_numpy(visible), float('-inf'))
        return mask[:, None]
