"""`store_rows` as a Triton kernel: one program per slot, KV head and block of tokens.

Row ids, starts and counts are device tensors, so a captured graph can be bound to other rows.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from embodied_kv.kernels.rows import RowBatch
from embodied_kv.kernels.tiles import width
from embodied_kv.kernels.triton_attention import alike

BLOCK_TOKENS = 64


# The rows of the tables may be aligned or not: one kernel reads either.
@triton.jit(do_not_specialize_on_alignment=['ids', 'starts', 'counts'])
def _store_rows(
    k,
    v,
    keys,
    values,
    ids,
    starts,
    counts,
    new_slot,
    new_token,
    new_head,
    old_row,
    old_head,
    old_token,
    max_tokens,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    slot, head, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row, count = tl.load(ids + slot), tl.load(counts + slot)  # a padding slot has no tokens
    token = block * BLOCK_T + tl.arange(0, BLOCK_T)
    d = tl.arange(0, BLOCK_D)
    at = tl.load(starts + slot) + token
    fits = (at >= 0) & (at < max_tokens)  # never into the next row
    own = (fits & (token < count))[:, None] & (d < DIM)[None, :]
    source = slot * new_slot + head * new_head
    source = source + token[:, None] * new_token + d[None, :]
    target = row.to(tl.int64) * old_row + head * old_head
    target = target + at[:, None] * old_token + d[None, :]
    tl.store(keys + target, tl.load(k + source, mask=own), mask=own)
    tl.store(values + target, tl.load(v + source, mask=own), mask=own)


def store_rows(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, batch: RowBatch) -> None:
    """See `embodied_kv.kernels.store.store_rows`; keys and values share their strides."""
    k, v = alike(k, v)
    slots, tokens, kv_heads, dim = k.shape
    block = min(BLOCK_TOKENS, triton.next_power_of_2(tokens))
    _store_rows[slots, kv_heads, triton.cdiv(tokens, block)](
        k,
        v,
        keys,
        values,
        batch.ids,
        batch.starts,
        batch.counts,
        *k.stride()[:3],
        *keys.stride()[:3],
        keys.shape[2],
        DIM=dim,
        BLOCK_D=width(dim),
        BLOCK_T=block,
    )
