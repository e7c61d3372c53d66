"""Attention over a prefix and a slot's own tokens in one Triton kernel, with split keys.

The tiles of keys of both segments form one sequence, which the splits share; there is a program
for each slot, KV head, block of queries and split. Each split writes its output and log-sum-exp,
and a second kernel merges them. Row ids, lengths and offsets are device tensors, so a captured
graph can be bound to other rows.

Source: Flash-Decoding (Dao et al., 2023): keys are split, partial results merged by log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from embodied_kv.kernels.rows import Segment
from embodied_kv.kernels.tiles import attention_tile, card_of, splits_of, width
from embodied_kv.kernels.triton_attention import alike

# The row of a table may be aligned in one layer and not in another: one kernel reads either.
TABLES = [
    *('whole_ids', 'whole_lengths', 'flat_ids', 'flat_lengths', 'flat_offsets'),
    *('own_ids', 'own_starts', 'own_lengths'),
]
MERGED = 8  # rows that one program merges


@triton.jit(do_not_specialize_on_alignment=TABLES, do_not_specialize=['splits'])
def _segments_attention(
    q,
    whole_k,
    whole_v,
    whole_ids,
    whole_lengths,
    flat_k,
    flat_v,
    flat_ids,
    flat_lengths,
    flat_offsets,
    own_k,
    own_v,
    own_ids,
    own_starts,
    own_lengths,
    out,
    lse,
    scale,
    tokens,
    heads,
    group,
    blocks,
    splits,
    whole_row,
    whole_head,
    whole_token,
    flat_head,
    flat_token,
    own_row,
    own_head,
    own_token,
    FLAT: tl.constexpr,
    CAUSAL: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    slot, split = tl.program_id(0), tl.program_id(2)
    kv_head, block = tl.program_id(1) // blocks, tl.program_id(1) % blocks
    m = block * BLOCK_M + tl.arange(0, BLOCK_M)  # token m // group, head m % group of the KV head
    token = m // group
    query_at = (slot * tokens + token) * heads + kv_head * group + m % group
    d = tl.arange(0, BLOCK_D)
    is_dim = d < DIM
    is_query = token < tokens
    inside = is_query[:, None] & is_dim[None, :]
    query = tl.load(q + query_at[:, None] * DIM + d[None, :], mask=inside, other=0.0)

    row = tl.load(whole_ids + slot)
    length = tl.where(row >= 0, tl.load(whole_lengths + slot), 0)
    at = tl.maximum(row, 0).to(tl.int64) * whole_row + kv_head * whole_head
    k_before, v_before, step_before = whole_k + at, whole_v + at, whole_token
    if FLAT:  # or a compressed copy, a piece of one axis of tokens
        is_flat = tl.load(flat_ids + slot) >= 0
        length = tl.where(is_flat, tl.load(flat_lengths + slot), length)
        at = tl.load(flat_offsets + slot).to(tl.int64) * flat_token + kv_head * flat_head
        k_before = tl.where(is_flat, flat_k + at, k_before)
        v_before = tl.where(is_flat, flat_v + at, v_before)
        step_before = tl.where(is_flat, flat_token, step_before)
    row = tl.load(own_ids + slot)
    own_length = tl.where(row >= 0, tl.load(own_lengths + slot), 0)
    at = tl.maximum(row, 0).to(tl.int64) * own_row + kv_head * own_head
    k_own, v_own = own_k + at, own_v + at
    visible_own = own_length + 0 * token
    if CAUSAL:  # token t lies at start + t and sees what lies before it, and itself
        visible_own = tl.minimum(tl.load(own_starts + slot) + token + 1, own_length)

    top = tl.full([BLOCK_M], float('-inf'), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    tiles_before = tl.cdiv(length, BLOCK_N)
    tiles = tiles_before + tl.cdiv(own_length, BLOCK_N)
    share = tl.cdiv(tiles, splits)
    for tile in range(split * share, tl.minimum((split + 1) * share, tiles)):
        is_before = tile < tiles_before
        n = tl.where(is_before, tile, tile - tiles_before) * BLOCK_N + tl.arange(0, BLOCK_N)
        step = tl.where(is_before, step_before, own_token)
        places = n[:, None] * step + d[None, :]
        valid = (n < tl.where(is_before, length, own_length))[:, None] & is_dim[None, :]
        keys = tl.load(tl.where(is_before, k_before, k_own) + places, mask=valid, other=0.0)
        score = tl.dot(query, tl.trans(keys), input_precision='ieee') * scale
        visible = tl.where(is_before, length, visible_own)
        score = tl.where(n[None, :] < visible[:, None], score, float('-inf'))
        new_top = tl.maximum(top, tl.max(score, 1))
        pivot = tl.where(new_top == float('-inf'), 0.0, new_top)  # a query may see nothing here
        weight = tl.exp(score - pivot[:, None])
        shrink = tl.exp(top - pivot)
        values = tl.load(tl.where(is_before, v_before, v_own) + places, mask=valid, other=0.0)
        mixed = mixed * shrink[:, None]
        mixed += tl.dot(weight.to(values.dtype), values, input_precision='ieee')
        total = total * shrink + tl.sum(weight, 1)
        top = new_top
    sees = total > 0
    total = tl.where(sees, total, 1.0)
    part_at = split * tl.num_programs(0) * tokens * heads + query_at
    place = part_at.to(tl.int64)[:, None] * DIM + d[None, :]
    tl.store(out + place, mixed / total[:, None], mask=inside)
    tl.store(lse + part_at, tl.where(sees, top + tl.log(total), float('-inf')), mask=is_query)


@triton.jit(do_not_specialize=['splits', 'rows'])
def _merge_splits(
    parts,
    lse,
    out,
    splits,
    rows,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    d = tl.arange(0, BLOCK_D)
    is_row = row < rows
    inside = is_row[:, None] & (d < DIM)[None, :]
    top = tl.full([BLOCK_R], float('-inf'), tl.float32)
    total = tl.zeros([BLOCK_R], tl.float32)
    mixed = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    for split in range(splits):
        at = split * rows + row
        size = tl.load(lse + at, mask=is_row, other=float('-inf'))
        part = tl.load(parts + at.to(tl.int64)[:, None] * DIM + d[None, :], mask=inside, other=0.0)
        new_top = tl.maximum(top, size)
        pivot = tl.where(new_top == float('-inf'), 0.0, new_top)
        weight, shrink = tl.exp(size - pivot), tl.exp(top - pivot)
        mixed = mixed * shrink[:, None] + part * weight[:, None]
        total = total * shrink + weight
        top = new_top
    mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]  # padding sees nothing: zero
    tl.store(out + row.to(tl.int64)[:, None] * DIM + d[None, :], mixed, mask=inside)


def segments_attention(
    q: Tensor, segments: Sequence[Segment], layer: int = 0, splits: int | None = None
) -> Tensor:
    """See `embodied_kv.kernels.attention.segments_attention`."""
    whole, *flats, own = segments
    flat = flats[0] if flats else whole  # not read where there is none
    offsets = flats[0].batch.offsets if flats else None
    q, (own_k, own_v) = q.contiguous(), alike(own.k, own.v)
    slots, tokens, heads, dim = q.shape
    kv_heads = own.k.shape[1]
    group, card = heads // kv_heads, card_of(q.device)
    tile = attention_tile(tokens * group, dim, q.element_size(), card)
    blocks = triton.cdiv(tokens * group, tile.queries)
    if splits is None:
        most = whole.k.shape[2] + own.k.shape[2]
        splits = splits_of(slots * kv_heads * blocks, most, tile, card)
    out = torch.empty_like(q)
    parts = out if splits == 1 else q.new_empty(splits, *q.shape, dtype=torch.float32)
    lse = q.new_empty(splits, slots, tokens, heads, dtype=torch.float32)
    _segments_attention[slots, kv_heads * blocks, splits](
        q,
        whole.k,
        whole.v,
        whole.batch.ids,
        _of(whole.batch.lengths, layer),
        flat.k,
        flat.v,
        flat.batch.ids,
        _of(flat.batch.lengths, layer),
        None if offsets is None else _of(offsets, layer),
        own_k,
        own_v,
        own.batch.ids,
        own.batch.starts,
        _of(own.batch.lengths, layer),
        parts,
        lse,
        dim**-0.5,
        tokens,
        heads,
        group,
        blocks,
        splits,
        *whole.k.stride()[:3],
        *flat.k.stride()[1:3],
        *own_k.stride()[:3],
        FLAT=bool(flats),
        CAUSAL=own.batch.causal,
        DIM=dim,
        BLOCK_D=width(dim),
        BLOCK_M=tile.queries,
        BLOCK_N=tile.keys,
        num_stages=tile.stages,
        num_warps=tile.warps,
    )
    if splits > 1:
        rows = slots * tokens * heads
        _merge_splits[(triton.cdiv(rows, MERGED),)](
            parts, lse, out, splits, rows, DIM=dim, BLOCK_D=width(dim), BLOCK_R=MERGED
        )
    return out


def _of(table: Tensor, layer: int) -> Tensor:
    """Return the row of a layer, or the only one if all layers agree."""
    return table[min(layer, len(table) - 1)]
