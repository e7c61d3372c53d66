"""Reading a prefix row, or a compressed copy of one, before a slot's own tokens."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from torch import Tensor

from embodied_kv.kernels.attention import segments_attention
from embodied_kv.kernels.rows import RowBatch, Segment
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.compressed_arena import CompressedArena
from embodied_kv.kv.handle import Lease
from embodied_kv.runtime.buffer import Buffer
from embodied_kv.runtime.inputs import StepInputs


class PrefixRead:
    """The prefix that each slot reads: a prefix row, or a compressed copy of one.

    flats: None if nothing is compressed. reads_copies: whether a slot reads a compressed copy.
    """

    def __init__(
        self,
        prefixes: Arena,
        flats: CompressedArena | None,
        slots: int,
        tokens: int,
        inputs: StepInputs,
    ) -> None:
        self.reads_copies = False
        whole = batch_over(inputs, 'prefix', slots, prefixes.lengths, tokens)
        self._parts: list[tuple[Arena | CompressedArena, RowBatch]] = [(prefixes, whole)]
        if flats is not None:
            tables = flats.lengths, tokens, False, flats.offsets
            self._parts.append((flats, batch_over(inputs, 'flat', slots, *tables)))

    @staticmethod
    def fields(prefixes: Arena, flats: CompressedArena | None, slots: int) -> dict:
        """Return the fields that it needs of its inputs."""
        found = table_field('prefix', slots, prefixes.lengths)
        if flats is not None:
            found |= table_field('flat', slots, flats.lengths, flats.offsets)
        return found

    def bind(self, rows: Sequence[int], flats: Sequence[int] = ()) -> np.ndarray:
        """Bind the first slots, and return the logical position after each prefix, int64.

        rows, flats: prefix row and compressed row of each slot, one of them -1.
        """
        after = np.zeros(len(rows), np.int64)
        self.reads_copies = max(flats, default=-1) >= 0
        for (arena, batch), bound in zip(self._parts, (rows, flats), strict=False):
            if max(bound, default=-1) < 0:
                batch.bind(())
                continue
            taken = np.array(bound, np.int64)
            batch.bind(taken)
            after += np.where(taken < 0, 0, arena.positions[taken])
        return after

    @property
    def whole(self) -> RowBatch:
        """Return the batch of the slots that read a prefix row."""
        return self._parts[0][1]

    @property
    def buffers(self) -> list[Buffer]:
        """Return what it reads in addition to K and V."""
        names = 'prefix.table', 'flat.table'
        return [Buffer(n, batch.table) for n, (_, batch) in zip(names, self._parts, strict=False)]

    def attend(self, layer: int, q: Tensor, own: Segment) -> Tensor:
        """Return `segments_attention` over the prefix and the slots' own tokens."""
        parts = (Segment(*arena.layers[layer], batch) for arena, batch in self._parts)
        return segments_attention(q, (*parts, own), layer)


def rows_read(leases: Sequence[Lease]) -> tuple[list[int], list[int]]:
    """Return the prefix row and the compressed row of each lease, one of them -1, for `bind`."""
    rows = [-1 if lease.is_copy else lease.row for lease in leases]
    copies = [lease.row if lease.is_copy else -1 for lease in leases]
    return rows, copies


def table_field(
    name: str, slots: int, lengths: np.ndarray, offsets: np.ndarray | None = None
) -> dict[str, tuple[int, type[np.generic]]]:
    """Return the field of the table of a batch of rows."""
    return {name: (prod(RowBatch.size(slots, lengths, offsets)), np.int32)}


def batch_over(
    inputs: StepInputs,
    name: str,
    slots: int,
    lengths: np.ndarray,
    tokens: int,
    causal: bool = False,
    offsets: np.ndarray | None = None,
) -> RowBatch:
    """Return a batch of rows whose table is a field of the inputs."""
    own = inputs.cut(name, *RowBatch.size(slots, lengths, offsets))
    return RowBatch(slots, lengths, tokens, causal, offsets, table=(own.host, own.device))


def place(positions: np.ndarray, starts: np.ndarray) -> None:
    """Write consecutive positions: slot b begins at starts[b], padding at 0."""
    positions[:] = np.arange(positions.shape[1])
    positions[: len(starts)] += starts[:, None]
