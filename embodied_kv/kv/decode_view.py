"""A view of the next token of several rows, one token each."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from torch import Tensor

from embodied_kv.kernels.attention import row_attention
from embodied_kv.kernels.rows import RowBatch
from embodied_kv.kernels.store import store_rows
from embodied_kv.kv.arena import Arena
from embodied_kv.runtime.buffer import Buffer
from embodied_kv.runtime.inputs import Fields, StepInputs

STARTS = 1  # line of a table of `RowBatch`: place of each slot's token in its row


class DecodeView:
    """One token in each of several rows; each token reads its own row, up to itself.

    It is made once for a number of slots, then bound to rows again and again; a slot without a row
    is padding. As a `kv.views.KvView` it takes q [slots, 1, heads, head_dim], k and v [slots, 1,
    kv_heads, head_dim]. positions: int64 [slots, 1], logical. inputs: with `fields`.

    Each layer has its own table, because a compressed row lacks another number of tokens in each
    layer, and a captured step always reads the same tables. On a CPU, layers whose rows lack the
    same numbers of tokens read the table of the first of them, so they share its plan.
    """

    fits_compiled = False

    def __init__(self, arena: Arena, slots: int, inputs: StepInputs | None = None) -> None:
        self._arena, layers = arena, len(arena.layers)
        self.inputs = inputs or StepInputs(arena.device, DecodeView.fields(arena, slots))
        self._tables = self.inputs.cut('tables', layers, *RowBatch.size(slots, arena.lengths))
        self._positions = self.inputs.cut('positions', slots, 1)
        self.positions = self._positions.device
        tables = zip(self._tables.host, self._tables.device, strict=True)
        lengths = arena.lengths
        self._batches = [RowBatch(slots, lengths, causal=True, table=table) for table in tables]
        self._read = [*self._batches]  # by layer
        self._shares_plans = arena.device.type == 'cpu'

    @staticmethod
    def fields(arena: Arena, slots: int) -> Fields:
        """Return the fields that it needs of its inputs."""
        size = len(arena.layers), *RowBatch.size(slots, arena.lengths)
        return {'tables': (prod(size), np.int32), 'positions': (slots, np.int64)}

    def bind(
        self, rows: Sequence[int], positions: Sequence[int], absent: Sequence[Sequence[int]]
    ) -> DecodeView:
        """Bind the first slots to rows whose lengths include the new tokens, and send the inputs.

        rows: row of each slot, at most as many as there are slots. positions: logical position of
        each new token. absent: tokens before it that each layer of each row lacks; () if none
        does.
        """
        complete, tables = (0,) * len(self._batches), self._tables.host
        lacks = np.array([own or complete for own in absent], np.int32).T  # [layers, rows]
        self._batches[0].bind(rows, positions)
        tables[1:] = tables[0]
        tables[:, STARTS, : len(rows)] -= lacks
        if self._shares_plans:
            first_of: dict[tuple[int, ...], int] = {}  # layer
            firsts = (first_of.setdefault(tuple(own), i) for i, own in enumerate(lacks.tolist()))
            self._read = [self._batches[first] for first in firsts]
        self._positions.host[:] = 0
        self._positions.host[: len(rows), 0] = positions
        self.inputs.send()
        return self

    @property
    def buffers(self) -> list[Buffer]:
        """Return what it reads in addition to the arena."""
        return [Buffer('tables', self._tables.device), Buffer('positions', self.positions)]

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        store_rows(k, v, *self._arena.layers[layer], self._read[layer])

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.store(layer, q, k, v)
        return row_attention(q, *self._arena.layers[layer], self._read[layer], layer)[0]
