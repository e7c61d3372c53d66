"""Writing new keys and values into rows of an arena, each slot's at its own positions.

One Triton kernel on CUDA, torch twins elsewhere.
"""

from __future__ import annotations

from torch import Tensor

from embodied_kv.kernels.rows import RowBatch

FEW = 4  # slots up to which views are quicker than an index


def store_rows(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, batch: RowBatch) -> None:
    """Token t of slot b goes to position starts[b] + t of row ids[b], for t < counts[b].

    k, v: [slots, tokens, kv_heads, head_dim]; keys, values: [rows, kv_heads, max_tokens,
    head_dim], one layer of an arena. Padding is stored nowhere, nor what lies beyond its row.
    """
    if k.is_cuda:
        from embodied_kv.kernels.triton_store import store_rows as triton_store_rows

        triton_store_rows(k, v, keys, values, batch)
    else:
        torch_store_rows(k, v, keys, values, batch)


def store_layers(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, batch: RowBatch) -> None:
    """`store_rows` of all layers at once.

    k, v: [layers, slots, tokens, kv_heads, head_dim]; keys, values: [layers, rows, kv_heads,
    max_tokens, head_dim], a whole arena.
    """
    if k.is_cuda:
        from embodied_kv.kernels.triton_store import store_layers as triton_store_layers

        triton_store_layers(k, v, keys, values, batch)
    else:
        torch_store_layers(k, v, keys, values, batch)


def torch_store_layers(
    k: Tensor, v: Tensor, keys: Tensor, values: Tensor, batch: RowBatch
) -> None:
    """The kernel's twin, for what fits into its row."""
    if batch.tokens == 1 and len(batch.spans) > FEW:  # one indexed write
        slots, rows, starts, _ = map(list, zip(*batch.spans, strict=True))
        keys[:, rows, :, starts] = k[:, slots, 0].transpose(0, 1)
        values[:, rows, :, starts] = v[:, slots, 0].transpose(0, 1)
    else:
        for slot, row, start, count in batch.spans:
            own = slice(start, start + count)
            keys[:, row, :, own] = k[:, slot, :count].transpose(1, 2)
            values[:, row, :, own] = v[:, slot, :count].transpose(1, 2)


def torch_store_rows(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, batch: RowBatch) -> None:
    """The kernel's twin."""
    live, most = len(batch.live), keys.shape[2]
    fits = all(0 <= start <= most - count for _, _, start, count in batch.spans)
    if fits and batch.tokens == 1 and batch.live == tuple(range(live)):  # one indexed write
        ids, at = batch.ids[:live], batch.starts[:live]
        keys[ids, :, at] = k[:live, 0]
        values[ids, :, at] = v[:live, 0]
        return
    for slot, row, start, count in batch.spans:
        begin, end = max(0, start), min(most, start + count)
        if begin < end:
            own = slice(begin - start, end - start)
            keys[row, :, begin:end] = k[slot, own].transpose(0, 1)
            values[row, :, begin:end] = v[slot, own].transpose(0, 1)
