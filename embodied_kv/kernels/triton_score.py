"""The three kernels of post-vision statistics in Triton (VL-Cache, A.5).

Rows: a tile of queries stays on chip while all keys are read; the heads that share a KV head are
folded into the queries, so K is read once for all of them. Columns: a tile of keys stays on chip
while the queries of one head are read. Scores, softmax and mask exist in registers only. Lengths,
starts and query counts are device tensors, so a captured graph can be bound again.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_COUNTS = 1024


@triton.jit
def _row_statistics(
    q,
    k,
    lengths,
    starts,
    top_out,
    total_out,
    scale,
    tau,
    heads,
    group,
    q_slot,
    q_token,
    q_head,
    k_slot,
    k_head,
    k_token,
    CAUSAL: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    block, kv_head, slot = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    m = block * BLOCK_M + tl.arange(0, BLOCK_M)  # query token m // group, head m % group of it
    token, head = m // group, kv_head * group + m % group
    is_query = token < tau
    d = tl.arange(0, BLOCK_D)
    is_dim = d < DIM
    at = slot * q_slot + token[:, None] * q_token + head[:, None] * q_head + d[None, :]
    query = tl.load(q + at, mask=is_query[:, None] & is_dim[None, :], other=0.0)
    length = tl.load(lengths + slot)
    visible = length + 0 * token
    if CAUSAL:
        visible = tl.minimum(visible, tl.load(starts + slot) + token + 1)
    top = tl.full([BLOCK_M], float('-inf'), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    base = k + slot * k_slot + kv_head * k_head
    for begin in range(0, length, BLOCK_N):
        n = begin + tl.arange(0, BLOCK_N)
        inside = (n < length)[:, None] & is_dim[None, :]
        keys = tl.load(base + n[:, None] * k_token + d[None, :], mask=inside, other=0.0)
        score = tl.dot(query, tl.trans(keys), input_precision='ieee') * scale
        score = tl.where(n[None, :] < visible[:, None], score, float('-inf'))
        new_top = tl.maximum(top, tl.max(score, 1))
        pivot = tl.where(new_top == float('-inf'), 0.0, new_top)  # a row may see nothing yet
        total = total * tl.exp(top - pivot) + tl.sum(tl.exp(score - pivot[:, None]), 1)
        top = new_top
    row_at = (slot * tau + token) * heads + head
    tl.store(top_out + row_at, top, mask=is_query)
    tl.store(total_out + row_at, total, mask=is_query)


@triton.jit
def _column_statistics(
    q,
    k,
    lengths,
    starts,
    queries,
    top,
    total,
    columns,
    partial,
    scale,
    p,
    tau,
    heads,
    group,
    keys_total,
    q_slot,
    q_token,
    q_head,
    k_slot,
    k_head,
    k_token,
    CAUSAL: tl.constexpr,
    PADDED: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    head, block, slot = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    length = tl.load(lengths + slot)
    n = block * BLOCK_N + tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    is_dim = d < DIM
    base = k + slot * k_slot + (head // group) * k_head
    inside = (n < length)[:, None] & is_dim[None, :]
    keys = tl.load(base + n[:, None] * k_token + d[None, :], mask=inside, other=0.0)
    valid_queries = tau
    if PADDED:
        valid_queries = tl.load(queries + slot)
    valid_queries = tl.where(
        block * BLOCK_N < length, valid_queries, 0
    )  # nothing to see beyond the valid keys
    column = tl.zeros([BLOCK_N], tl.float32)
    low = tl.zeros([BLOCK_N], tl.int32)
    for begin in range(0, valid_queries, BLOCK_M):
        token = begin + tl.arange(0, BLOCK_M)
        is_query = token < valid_queries
        at = slot * q_slot + token[:, None] * q_token + head * q_head + d[None, :]
        query = tl.load(q + at, mask=is_query[:, None] & is_dim[None, :], other=0.0)
        row_at = (slot * tau + token) * heads + head
        row_total = tl.load(total + row_at, mask=is_query, other=0.0)
        sees = row_total > 0
        row_top = tl.where(sees, tl.load(top + row_at, mask=is_query, other=0.0), 0.0)
        row_total = tl.where(sees, row_total, 1.0)
        limit = length + 0 * token
        if CAUSAL:
            limit = tl.minimum(limit, tl.load(starts + slot) + token + 1)
        visible = is_query[:, None] & (n[None, :] < limit[:, None])
        score = tl.dot(query, tl.trans(keys), input_precision='ieee') * scale
        score = tl.where(visible, score - row_top[:, None], float('-inf'))
        weight = tl.exp(score)  # relative to the row's maximum
        column += tl.sum(weight / row_total[:, None], 0)
        low += tl.sum((visible & (weight < p)).to(tl.int32), 0)
    head_at = slot * heads + head
    tl.store(columns + head_at * keys_total + n, column, mask=n < keys_total)
    tl.store(partial + head_at * tl.num_programs(1) + block, tl.sum(low, 0))


@triton.jit
def _reduce_counts(partial, counts, blocks, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    count = tl.zeros([BLOCK], tl.int32)
    for begin in range(0, blocks, BLOCK):
        i = begin + tl.arange(0, BLOCK)
        count += tl.load(partial + row * blocks + i, mask=i < blocks, other=0)
    tl.store(counts + row, tl.sum(count, 0))


def row_statistics(
    q: Tensor, k: Tensor, lengths: Tensor, starts: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """See `embodied_kv.kernels.score.torch_row_statistics`."""
    q, k = _rows(q), _rows(k)
    slots, tau, heads, dim = q.shape
    kv_heads = k.shape[1]
    group = heads // kv_heads
    top = torch.empty(slots, tau, heads, dtype=torch.float32, device=q.device)
    total = torch.empty_like(top)
    block_m = _block(tau * group, k)
    _row_statistics[triton.cdiv(tau * group, block_m), kv_heads, slots](
        q,
        k,
        lengths.contiguous(),
        None if starts is None else starts.contiguous(),
        top,
        total,
        dim**-0.5,
        tau,
        heads,
        group,
        *q.stride()[:3],
        *k.stride()[:3],
        CAUSAL=starts is not None,
        DIM=dim,
        BLOCK_D=max(16, triton.next_power_of_2(dim)),
        BLOCK_M=block_m,
        BLOCK_N=_largest(k),
    )
    return top, total


def column_statistics(
    q: Tensor,
    k: Tensor,
    lengths: Tensor,
    top: Tensor,
    total: Tensor,
    p: float,
    starts: Tensor | None = None,
    queries: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See `embodied_kv.kernels.score.torch_column_statistics`; one block of counts per tile."""
    q, k = _rows(q), _rows(k)
    slots, tau, heads, dim = q.shape
    kv_heads, n = k.shape[1:3]
    block_n = _largest(k)
    blocks = triton.cdiv(n, block_n)
    columns = torch.empty(slots, heads, n, dtype=torch.float32, device=q.device)
    partial = torch.empty(slots, heads, blocks, dtype=torch.int32, device=q.device)
    _column_statistics[heads, blocks, slots](
        q,
        k,
        lengths.contiguous(),
        None if starts is None else starts.contiguous(),
        None if queries is None else queries.contiguous(),
        top.contiguous(),
        total.contiguous(),
        columns,
        partial,
        dim**-0.5,
        p,
        tau,
        heads,
        heads // kv_heads,
        n,
        *q.stride()[:3],
        *k.stride()[:3],
        CAUSAL=starts is not None,
        PADDED=queries is not None,
        DIM=dim,
        BLOCK_D=max(16, triton.next_power_of_2(dim)),
        BLOCK_M=_block(tau, k),
        BLOCK_N=block_n,
    )
    return columns, partial


def reduce_counts(partial: Tensor) -> Tensor:
    """See `embodied_kv.kernels.score.torch_reduce_counts`."""
    slots, heads, blocks = partial.shape
    counts = torch.empty(slots, heads, dtype=torch.int32, device=partial.device)
    block = min(BLOCK_COUNTS, triton.next_power_of_2(blocks))
    _reduce_counts[(slots * heads,)](partial.contiguous(), counts, blocks, BLOCK=block)
    return counts


def _rows(x: Tensor) -> Tensor:
    """Return the tensor if its last dimension is dense, as kernels need it; else a copy."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _largest(k: Tensor) -> int:
    """Return the largest number of queries or keys of a tile; wide float32 heads need less."""
    return 64 if k.shape[3] * k.element_size() <= 512 else 32


def _block(queries: int, k: Tensor) -> int:
    """Return the number of queries of a tile."""
    return max(16, min(_largest(k), triton.next_power_of_2(queries)))
