"""Writing new keys and values into rows of an arena, each slot's at its own positions.

One Triton kernel on CUDA, its torch twin elsewhere.
"""

from __future__ import annotations

from torch import Tensor

from embodied_kv.kernels.rows import RowBatch


def store_rows(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, batch: RowBatch) -> None:
    """Token t of slot b goes to position starts[b] + t of row ids[b], for t < counts[b].

    k, v: [slots, tokens, kv_heads, head_dim]; keys, values: [rows, kv_heads, max_tokens,
    head_dim], one layer of an arena. Padding is stored nowhere, nor what lies beyond its row.
    """
    if k.is_cuda:
        from embodied_kv.kernels.triton_store import store_rows as triton_store_rows

        triton_store_rows(k, v, keys, values, batch)
    else:
        torch_store(k, keys, batch)
        torch_store(v, values, batch)


def store_layers(new: Tensor, rows: Tensor, batch: RowBatch) -> None:
    """`store_rows` of keys and values of all layers at once.

    new: [2, layers, slots, tokens, kv_heads, head_dim]; rows: [2, layers, rows, kv_heads,
    max_tokens, head_dim], a whole arena.
    """
    if new.is_cuda:
        from embodied_kv.kernels.triton_store import store_layers as triton_store_layers

        (k, v), (keys, values) = new, rows
        triton_store_layers(k, v, keys, values, batch)
    else:
        torch_store(new, rows, batch)


def torch_store(new: Tensor, rows: Tensor, batch: RowBatch) -> None:
    """The kernel's twin. new, rows: as above, of one thing or of many."""
    kv_heads, most, dim = rows.shape[-3:]
    at = batch.places(kv_heads, most)
    if at is not None:  # one indexed write, of all rows as one axis
        if len(batch.live) < batch.slots:
            new = new.narrow(-4, 0, len(batch.live))
        rows.view(*rows.shape[:-4], -1, dim).index_copy_(-2, at, new.flatten(-4, -2))
        return
    for slot, row, start, count in batch.spans:
        begin, end = max(0, start), min(most, start + count)
        if begin < end:
            own = new[..., slot, begin - start : end - start, :, :]
            rows[..., row, :, begin:end, :] = own.transpose(-3, -2)
