"""Attention that reads rows of an arena in place, over one segment or over several.

`row_attention` and `segments_attention` are Triton kernels on CUDA and computed in torch
elsewhere. torch computes each segment and merges them by log-sum-exp; the kernel reads all of them
in one pass. Neither copies a segment; the form for tracers (`dense`) does.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from embodied_kv.kernels.dense import dense_prefix_attention, dense_segments_attention, is_traced
from embodied_kv.kernels.rows import RowBatch, Segment


def row_attention(
    q: Tensor, k: Tensor, v: Tensor, batch: RowBatch, layer: int = 0
) -> tuple[Tensor, Tensor]:
    """Return attention of each slot's queries over its row's valid tokens, and log-sum-exps.

    Softmax attention with scale head_dim^-0.5; padding slots get zero. q: [slots, tokens, heads,
    head_dim]; k, v: [rows, kv_heads, max_tokens, head_dim], one layer of an arena. The output is
    shaped like q; with the log-sum-exps of the scores, float32 [slots, tokens, heads], outputs
    over several segments can be merged.
    """
    if q.is_cuda:
        from embodied_kv.kernels.triton_attention import row_attention as triton_row_attention

        return triton_row_attention(q, k, v, batch, layer)
    return torch_row_attention(q, k, v, batch, layer)


def torch_row_attention(
    q: Tensor, k: Tensor, v: Tensor, batch: RowBatch, layer: int = 0
) -> tuple[Tensor, Tensor]:
    """Compute `row_attention` by one fused call per run of adjacent rows, on a view."""
    plan = batch.plan(layer)
    if not plan.runs:
        return q.new_zeros(q.shape), q.new_zeros(q.shape[:3], dtype=torch.float32)
    reading = q if plan.order is None else q.index_select(0, plan.order)
    parts = [
        _attend_run(
            reading[r.slots],
            k[r.rows, :, r.begin : r.begin + r.longest],
            v[r.rows, :, r.begin : r.begin + r.longest],
            r.mask,
        )
        for r in plan.runs
    ]
    out, lse = parts[0] if len(parts) == 1 else map(torch.cat, zip(*parts, strict=True))
    if plan.order is None:
        return out, lse
    out, lse = (
        part.new_zeros(batch.slots, *part.shape[1:]).index_copy_(0, plan.order, part)
        for part in (out, lse)
    )
    return out, lse


def _attend_run(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return attention of q [slots, T, H, D] over k, v [rows, KV, N, D], and log-sum-exps.

    The slots of a row are folded into its queries.
    """
    slots, tokens, heads, dim = q.shape
    rows, kv_heads = k.shape[:2]
    group = heads // kv_heads
    queries = slots // rows * tokens
    if mask is not None:
        if mask.shape[2] > 1:  # one mask row per query token, repeated for the heads of a group
            mask = mask.repeat_interleave(group, 2)
        mask = mask.to(q.dtype)
    is_one = 1 in (queries, kv_heads)  # then the queries of a KV head are adjacent already
    if not is_one:
        q = q.reshape(rows, queries, kv_heads, group, dim).transpose(1, 2)
    q = q.reshape(rows, kv_heads, queries * group, dim)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, False, attn_mask=mask
    )
    if not is_one:
        out = out.reshape(rows, kv_heads, queries, group, dim).transpose(1, 2)
        lse = lse.reshape(rows, kv_heads, queries, group).transpose(1, 2)
    return out.reshape(slots, tokens, heads, dim), lse.reshape(slots, tokens, heads)


def segments_attention(
    q: Tensor, segments: Sequence[Segment], layer: int = 0, splits: int | None = None
) -> Tensor:
    """Return softmax attention of each slot's queries over its prefix and its own tokens, like q.

    q: [slots, tokens, heads, head_dim]. segments: rows of an arena; pieces of the ragged axis of
    compressed rows, if there are any; last the slots' own tokens, the only segment that may be
    causal or alone. A slot has a row in one of the others; the result of a slot without a row is
    finite, but has no meaning. splits: number of parts of the keys, each a program of the kernel;
    by default as many as fill the GPU. It changes the order of sums. torch does not split.
    """
    if is_traced():
        return dense_segments_attention(q, segments, layer)
    if len(segments) == 1:
        return row_attention(q, *segments[0], layer)[0]
    if q.is_cuda:
        from embodied_kv.kernels.triton_segments import segments_attention as triton_segments

        return triton_segments(q, segments, layer, splits)
    return torch_segments_attention(q, segments, layer)


def prefix_attention(q: Tensor, segments: Sequence[Segment], layer: int = 0) -> Tensor:
    """Return softmax attention of each slot's queries over its row in one of the segments, like q.

    The first segment has rows of an arena.
    """
    if is_traced():
        return dense_prefix_attention(q, segments, layer)
    outs = [
        row_attention(q, *segment, layer)[0]
        for segment in segments
        if q.is_cuda or segment.batch.live
    ]
    # For every slot, all but one of the outputs are zero.
    return sum(outs[1:], outs[0]) if outs else torch.zeros_like(q)


def torch_segments_attention(q: Tensor, segments: Sequence[Segment], layer: int = 0) -> Tensor:
    """Compute `segments_attention` in torch; segments that no slot reads cost nothing.

    A slot's row must have a token, because torch's CPU attention divides by the number of tokens.
    """
    *prefixes, own = segments
    prefixes = [segment for segment in prefixes if segment.batch.live] or prefixes[:1]
    prefix, *others = (torch_row_attention(q, *segment, layer) for segment in prefixes)
    for out, lse in others:  # for every slot, all but one are zero
        prefix = prefix[0] + out, prefix[1] + lse
    return merge(prefix, torch_row_attention(q, *own, layer))


def merge(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """Return attention over two segments from each one's (output, log-sum-exp)."""
    (out1, lse1), (out2, lse2) = first, second
    # In bfloat16 a share of 0.2 % would be rounded to 0.
    share = torch.sigmoid(lse1 - lse2).unsqueeze(-1)
    merged = torch.lerp(out2.to(share.dtype), out1.to(share.dtype), share)
    return merged.to(out1.dtype)
