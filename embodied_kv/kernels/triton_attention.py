"""`row_attention` as a Triton kernel: one program per slot, KV head and block of queries.

The heads that share a KV head are folded into the queries, so K and V of a row are read once for
all of them. Row ids and lengths are device tensors, so a captured graph can be bound to other
rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from embodied_kv.kernels.rows import RowBatch
from embodied_kv.kernels.tiles import attention_tile, card_of, width

# The row of a table may be aligned in one layer and not in another: one kernel reads either.
TABLES = ['ids', 'starts', 'lengths', 'offsets']


@triton.jit(do_not_specialize_on_alignment=TABLES)
def _row_attention(
    q,
    k,
    v,
    ids,
    starts,
    lengths,
    offsets,
    out,
    lse,
    scale,
    tokens,
    heads,
    group,
    stride_row,
    stride_head,
    stride_token,
    CAUSAL: tl.constexpr,
    RAGGED: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    slot, kv_head, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = tl.load(ids + slot)
    is_row = row >= 0  # otherwise the slot is padding: no keys, and zero
    length = tl.load(lengths + slot)
    m = block * BLOCK_M + tl.arange(0, BLOCK_M)  # token m // group, head m % group of the KV head
    token = m // group
    query_at = (slot * tokens + token) * heads + kv_head * group + m % group
    is_query = token < tokens
    d = tl.arange(0, BLOCK_D)
    is_dim = d < DIM
    query = tl.load(
        q + query_at[:, None] * DIM + d[None, :],
        mask=is_query[:, None] & is_dim[None, :],
        other=0.0,
    )
    visible = length + 0 * token
    if CAUSAL:  # token t lies at start + t and sees what lies before it, and itself
        visible = tl.minimum(tl.load(starts + slot) + token + 1, length)
    top = tl.full([BLOCK_M], float('-inf'), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    if RAGGED:  # rows are pieces of one axis of tokens
        first = tl.load(offsets + slot).to(tl.int64) * stride_token
    else:
        first = row.to(tl.int64) * stride_row
    base = first + kv_head * stride_head
    for begin in range(0, length, BLOCK_N):
        n = begin + tl.arange(0, BLOCK_N)
        at = base + n[:, None] * stride_token + d[None, :]
        inside = (n < length)[:, None] & is_dim[None, :]
        keys = tl.load(k + at, mask=inside, other=0.0)
        score = tl.dot(query, tl.trans(keys), input_precision='ieee') * scale
        score = tl.where(n[None, :] < visible[:, None], score, float('-inf'))
        new_top = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp(score - new_top[:, None])
        shrink = tl.exp(top - new_top)
        values = tl.load(v + at, mask=inside, other=0.0)
        mixed = mixed * shrink[:, None]
        mixed += tl.dot(weight.to(values.dtype), values, input_precision='ieee')
        total = total * shrink + tl.sum(weight, 1)
        top = new_top
    weight_sum = tl.where(is_row, total, 1.0)
    tl.store(
        out + query_at[:, None] * DIM + d[None, :],
        mixed / weight_sum[:, None],
        mask=is_query[:, None] & is_dim[None, :],
    )
    tl.store(lse + query_at, tl.where(is_row, top, 0.0) + tl.log(weight_sum), mask=is_query)


def row_attention(
    q: Tensor, k: Tensor, v: Tensor, batch: RowBatch, layer: int = 0
) -> tuple[Tensor, Tensor]:
    """See `embodied_kv.kernels.attention.row_attention`."""
    q, (k, v) = q.contiguous(), alike(k, v)
    slots, tokens, heads, dim = q.shape
    kv_heads = k.shape[1]
    out = torch.empty_like(q)
    lse = torch.empty(slots, tokens, heads, dtype=torch.float32, device=q.device)
    lengths, offsets = batch.lengths, batch.offsets
    group = heads // kv_heads
    tile = attention_tile(tokens * group, dim, k.element_size(), card_of(q.device))
    grid = slots, kv_heads, triton.cdiv(tokens * group, tile.queries)
    _row_attention[grid](
        q,
        k,
        v,
        batch.ids,
        batch.starts,
        lengths[min(layer, len(lengths) - 1)],
        lengths if offsets is None else offsets[layer],
        out,
        lse,
        dim**-0.5,
        tokens,
        heads,
        group,
        *k.stride()[:3],
        CAUSAL=batch.causal,
        RAGGED=offsets is not None,
        DIM=dim,
        BLOCK_D=width(dim),
        BLOCK_M=tile.queries,
        BLOCK_N=tile.keys,
        num_stages=tile.stages,
        num_warps=tile.warps,
    )
    return out, lse


def alike(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values with equal strides and a dense last dimension."""
    if k.stride() == v.stride() and k.stride(-1) == 1:
        return k, v
    return k.contiguous(), v.contiguous()
