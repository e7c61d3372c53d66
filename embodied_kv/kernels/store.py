"""Writing new keys and values into rows of an arena, each slot's at its own positions.

A Triton kernel on CUDA, torch elsewhere, and an indexed write in a trace (`dense`).
"""

from __future__ import annotations

from torch import Tensor

from embodied_kv.kernels.dense import dense_store, is_traced
from embodied_kv.kernels.rows import RowBatch


def store_rows(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, batch: RowBatch) -> None:
    """Write token t of slot b to position starts[b] + t of row ids[b], for t < counts[b].

    k, v: [slots, tokens, kv_heads, head_dim]; keys, values: [rows, kv_heads, max_tokens,
    head_dim], one layer of an arena. Padding and tokens beyond their row are not stored.
    """
    if is_traced():
        dense_store(k, keys, batch)
        dense_store(v, values, batch)
    elif k.is_cuda:
        from embodied_kv.kernels.triton_store import store_rows as triton_store_rows

        triton_store_rows(k, v, keys, values, batch)
    else:
        torch_store(k, keys, batch)
        torch_store(v, values, batch)


def torch_store(new: Tensor, rows: Tensor, batch: RowBatch) -> None:
    """Write keys or values as `store_rows` does."""
    _, kv_heads, most, dim = rows.shape
    at = batch.places(kv_heads, most)
    if at is not None:  # one indexed write, with all rows as one axis
        if len(batch.live) < batch.slots:
            new = new[: len(batch.live)]
        rows.view(-1, dim).index_copy_(0, at, new.flatten(0, 2))
        return
    for slot, row, start, count in batch.spans:
        begin, end = max(0, start), min(most, start + count)
        if begin < end:
            own = new[slot, begin - start : end - start]
            rows[row, :, begin:end] = own.transpose(0, 1)
