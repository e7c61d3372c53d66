"""Attention statistics for compression, without an attention matrix in memory.

Three kernels (VL-Cache, A.5), in Triton on CUDA and in torch elsewhere: statistics of the rows
(maximum and sum), statistics of the columns (sum of attention, entries below the threshold), and
the sum of the partial counts. Keys may lie in several segments: a prefix row that every query
sees, then a stream's decode KV, of which query t sees what precedes it. Rows are merged over the
segments; columns are then computed segment by segment.

The scale of a score is head_dim ** -0.5, as in the model (the paper's Algorithm 1 prints d instead
of its root).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from embodied_kv.kernels.dense import is_traced


@dataclass(frozen=True, eq=False)
class KvSegment:
    """Keys of one tensor.

    k: [slots, kv_heads, N, head_dim], any strides. lengths: int32 [slots], valid keys, at most N.
    starts: int32 [slots], query t sees keys 0 .. starts + t; None: every valid key.
    """

    k: Tensor
    lengths: Tensor
    starts: Tensor | None = None


def post_vision_statistics(
    q: Tensor, segments: Sequence[KvSegment], p: float = 0.01, queries: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return attention to each position of the first segment, and density over all segments.

    q: [slots, tau, heads, head_dim], the scoring queries; of slot s the first queries[s] (int32;
    None: all) are valid. p: threshold, as a share of each row's maximum (equation 1). The
    attention is float32 [slots, heads, N of the first segment], softmax attention summed over the
    queries; the density is float32 [slots, heads], the share of visible entries that reach the
    threshold.
    """
    if q.is_cuda and not is_traced():  # a trace records operators of torch only
        return kernel_post_vision_statistics(q, segments, p, queries)
    return torch_post_vision_statistics(q, segments, p, queries)


def kernel_post_vision_statistics(
    q: Tensor, segments: Sequence[KvSegment], p: float = 0.01, queries: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute `post_vision_statistics` by the three kernels; on a CPU by their torch forms."""
    row_statistics, column_statistics, reduce_counts = _kernels(q.is_cuda)
    rows = [row_statistics(q, s.k, s.lengths, s.starts) for s in segments]
    top, total = reduce(merge_rows, rows)
    parts = [
        column_statistics(q, s.k, s.lengths, top, total, p, s.starts, queries) for s in segments
    ]
    low = reduce(torch.add, [reduce_counts(partial) for _, partial in parts])
    return parts[0][0], density(low, _all_visible(q, segments, queries))


def _kernels(on_cuda: bool) -> tuple[Callable, Callable, Callable]:
    if on_cuda:
        from embodied_kv.kernels import triton_score as kernels

        return kernels.row_statistics, kernels.column_statistics, kernels.reduce_counts
    return torch_row_statistics, torch_column_statistics, torch_reduce_counts


def torch_post_vision_statistics(
    q: Tensor, segments: Sequence[KvSegment], p: float = 0.01, queries: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute `post_vision_statistics` in one pass, with the scores in memory; for a CPU."""
    tau = q.shape[1]
    parts = []
    for s in segments:
        n = s.k.shape[2]
        parts.append(_hide(_scores(q, s.k), _limits(tau, n, s.lengths, s.starts)))
    scores = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
    attention = scores.softmax(-1)
    blind = attention[..., :1].isnan()  # rows that see nothing
    if is_traced() or blind.any():
        attention = attention.masked_fill_(blind, 0.0)
    bar = (p * attention.amax(-1, keepdim=True)).clamp_(min=torch.finfo(torch.float32).tiny)
    kept = torch.ge(attention, bar, out=scores).sum(-1).long()  # [slots, heads, tau]
    columns = attention[..., : segments[0].k.shape[2]]
    if queries is None:
        columns = columns.sum(2)
    else:
        valid = torch.arange(tau, device=q.device) < queries[:, None, None]  # [slots, 1, tau]
        kept, columns = kept * valid, (valid.float()[:, :, None] @ columns)[:, :, 0]
    visible = _all_visible(q, segments, queries)
    return columns, density(visible[:, None] - kept.sum(-1), visible)


def merge_rows(
    first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return row statistics over two segments from each one's (maximum, sum).

    Exact for a row that sees nothing of one segment: it keeps the statistics of the other.
    """
    (top1, total1), (top2, total2) = first, second
    top = torch.maximum(top1, top2)
    pivot = top.masked_fill(top == float('-inf'), 0.0)
    return top, total1 * (top1 - pivot).exp() + total2 * (top2 - pivot).exp()


def visible_entries(
    lengths: Tensor, tau: int, starts: Tensor | None = None, queries: Tensor | None = None
) -> Tensor:
    """Return the visible entries of a segment's attention matrix, per head, int64 [slots].

    The sum over the valid queries t of min(lengths, starts + t + 1), in closed form.
    """
    length = lengths.long()
    count = torch.full_like(length, tau) if queries is None else queries.long()
    if starts is None:
        return length * count

    def seen(last: Tensor) -> Tensor:
        """Sum of min(j, length) over j = 0 .. last; 0 for a negative last."""
        last = last.clamp(min=0)
        ramp = torch.minimum(last, length)
        return ramp * (ramp + 1) // 2 + (last - ramp) * length

    begin = starts.long()
    return seen(begin + count) - seen(begin)


def density(low: Tensor, visible: Tensor) -> Tensor:
    """Return 1 - gamma (3.1), the share of visible entries that reach the threshold.

    low: int [slots, heads], visible entries below it. visible: int [slots]; the density is 0 where
    it is 0.
    """
    kept = visible[:, None] - low.long()
    return (kept.double() / visible.clamp(min=1)[:, None]).float()


def torch_row_statistics(
    q: Tensor, k: Tensor, lengths: Tensor, starts: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the maximum of each query's scores over its visible keys, and sum exp(score - max).

    Kernel 1 of A.5, in torch, with the scores in memory. q: [slots, tau, heads, head_dim]; k,
    lengths, starts: as of `KvSegment`. The results are float32 [slots, tau, heads], -inf and 0 for
    a query that sees no key.
    """
    scores = _hide(_scores(q, k), _limits(q.shape[1], k.shape[2], lengths, starts))
    top = scores.amax(-1)
    pivot = top.masked_fill(top == float('-inf'), 0.0)
    total = scores.sub_(pivot[..., None]).exp_().sum(-1)
    return top.transpose(1, 2), total.transpose(1, 2)


def torch_column_statistics(
    q: Tensor,
    k: Tensor,
    lengths: Tensor,
    top: Tensor,
    total: Tensor,
    p: float,
    starts: Tensor | None = None,
    queries: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the attention that each key gets from all queries, and counts of low entries.

    Kernel 2 of A.5, in torch, with the scores in memory and one block of counts. q, k, lengths,
    starts: as of `torch_row_statistics`. top, total: its results over all segments. p, queries: as
    of `post_vision_statistics`. The attention is float32 [slots, heads, N], 0 beyond the valid
    keys; the counts, of visible entries below p times their row's maximum, are int32 [slots,
    heads, blocks]. The implementation chooses the number of blocks.
    """
    tau, n = q.shape[1], k.shape[2]
    top, total = top.transpose(1, 2), total.transpose(1, 2)  # [slots, heads, tau]
    limits = _limits(tau, n, lengths, starts)
    weight = _hide(_scores(q, k), limits)
    weight = weight.sub_(top.masked_fill(total == 0, 0.0)[..., None]).exp_()
    low = (weight < p).sum(-1)  # hidden entries, of weight 0, are subtracted below
    if limits is not None:
        low -= n - limits[:, None]
    share = torch.where(total > 0, 1 / total, 0.0)
    if queries is not None:
        valid = torch.arange(tau, device=q.device) < queries[:, None, None]
        share, low = share * valid, low * valid
    columns = (share[:, :, None] @ weight)[:, :, 0]
    return columns, low.sum(-1, keepdim=True, dtype=torch.int32)


def torch_reduce_counts(partial: Tensor) -> Tensor:
    """Return the sums over blocks of counts [slots, heads, blocks], int32 [slots, heads].

    Kernel 3 of A.5. Exact for fewer than 2^31 entries of a head.
    """
    return partial.sum(-1, dtype=torch.int32)


def _scores(q: Tensor, k: Tensor) -> Tensor:
    """Return scores [slots, heads, tau, N]; q: [slots, tau, heads, D], k: as `KvSegment.k`."""
    slots, tau, heads, dim = q.shape
    kv_heads, n = k.shape[1:3]
    folded = (q.float() * dim**-0.5).transpose(1, 2)  # heads that share a KV head lie together
    folded = folded.reshape(slots, kv_heads, heads // kv_heads * tau, dim)
    return (folded @ k.float().transpose(2, 3)).view(slots, heads, tau, n)


def _limits(tau: int, n: int, lengths: Tensor, starts: Tensor | None) -> Tensor | None:
    """Return the number of keys that a query sees, [slots, tau] or [slots, 1]; None: all."""
    if starts is None:
        return None if not is_traced() and bool((lengths == n).all()) else lengths[:, None]
    steps = torch.arange(1, tau + 1, device=lengths.device)
    return torch.minimum(lengths[:, None], (starts[:, None] + steps).clamp(min=0))


def _hide(scores: Tensor, limits: Tensor | None) -> Tensor:
    """Overwrite scores [slots, heads, tau, N] beyond the limits with -inf, and return them."""
    if limits is None:
        return scores
    if limits.shape[1] == 1 and not is_traced():  # whole columns, without a pass over the others
        for slot, limit in zip(scores, limits[:, 0].tolist(), strict=True):
            slot[..., limit:] = float('-inf')
        return scores
    hidden = torch.arange(scores.shape[3], device=limits.device) >= limits[..., None]
    return scores.masked_fill_(hidden[:, None], float('-inf'))


def _all_visible(q: Tensor, segments: Sequence[KvSegment], queries: Tensor | None) -> Tensor:
    """Return the visible entries of a head over all segments, int64 [slots]."""
    visible = [visible_entries(s.lengths, q.shape[1], s.starts, queries) for s in segments]
    return reduce(torch.add, visible)
