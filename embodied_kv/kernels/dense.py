"""Attention and stores in operations that a compiler can trace.

`segments_attention` and `store_rows` plan reads and writes in Python, which is invisible to a
tracer. While a computation is traced they use the functions of this module: all segments are
gathered for one dense attention, and rows are written by one index. The gather reads the rows once
more, but the compiler fuses everything else. Of a compressed row it reads `RowBatch.capacity`
tokens of each layer; with a capacity of 0 it reads whole prefixes only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.nn import functional as F

from embodied_kv.kernels.rows import RowBatch, Segment

_IS_TRACED: ContextVar[bool] = ContextVar('is_traced', default=False)
is_traced = _IS_TRACED.get  # called for every layer of every step


@contextmanager
def dense_form() -> Iterator[None]:
    """Compute in the dense form, in this thread, within the context."""
    token = _IS_TRACED.set(True)
    try:
        yield
    finally:
        _IS_TRACED.reset(token)


def dense_segments_attention(q: Tensor, segments: Sequence[Segment], layer: int) -> Tensor:
    """Return `segments_attention` over the prefixes and the slots' own tokens.

    The last segment has the slots' own tokens. Padding slots get zeros.
    """
    *prefixes, own = segments
    if not own.batch.causal:  # then its tokens are the queries, at the start of each row
        own = Segment(own.k[:, :, : q.shape[1]], own.v[:, :, : q.shape[1]], own.batch)
    keys, values, seen = _visible((*filter(_is_dense, prefixes), own), layer)
    # Every slot that reads sees its first own token. A query of padding sees it as zero.
    seen = seen | _is_at(keys.shape[2] - own.k.shape[2], seen)
    return dense_attention(q, keys, values, seen)


def dense_prefix_attention(q: Tensor, segments: Sequence[Segment], layer: int) -> Tensor:
    """Return `prefix_attention`."""
    keys, values, seen = _visible([*filter(_is_dense, segments)], layer)
    # A padding slot sees one token, which is zero, so that its softmax is defined.
    seen = seen | (_is_at(0, seen) & ~seen.any(2, keepdim=True))
    return dense_attention(q, keys, values, seen)


def _is_dense(segment: Segment) -> bool:
    """Return whether the dense form reads a segment: a row, or a piece with a capacity."""
    return segment.batch.offsets is None or segment.batch.capacity > 0


def _is_at(place: int, seen: Tensor) -> Tensor:
    """Return bool [keys], true for one of the keys."""
    return torch.arange(seen.shape[2], device=seen.device) == place


def _visible(segments: Sequence[Segment], layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return keys, values and mask of all segments, gathered by slots."""
    keys, values, masks = zip(*(_gathered(part, layer) for part in segments), strict=True)
    queries = max(mask.shape[1] for mask in masks)
    seen = torch.cat([mask.expand(-1, queries, -1) for mask in masks], 2)
    return torch.cat(keys, 2), torch.cat(values, 2), seen


def _gathered(segment: Segment, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    batch, most = segment.batch, segment.k.shape[2]
    lengths = batch.lengths[min(layer, len(batch.lengths) - 1)]
    if batch.offsets is not None:
        return _pieces(segment, lengths, batch.offsets[min(layer, len(batch.offsets) - 1)])
    keys, values = gather(segment.k, segment.v, batch, lengths)
    if not batch.causal:
        return keys, values, before(lengths, most)
    ends = batch.starts[:, None] + torch.arange(1, batch.tokens + 1, device=lengths.device)
    places = torch.arange(most, device=lengths.device)
    return keys, values, places < torch.minimum(ends, lengths[:, None])[..., None]


def dense_attention(q: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """Return softmax attention of each slot's queries over the keys that they see.

    The scale is head_dim^-0.5. q: [slots, tokens, heads, head_dim]; keys, values: [slots,
    kv_heads, keys, head_dim]; seen: bool [slots, tokens or 1, keys], true for at least one key of
    each query.
    """
    tokens, heads = q.shape[1:3]
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    # The heads that share a KV head are folded into the queries.
    folded = q.unflatten(2, (kv_heads, group)).transpose(1, 2).flatten(2, 3)
    mask = torch.where(seen, 0.0, float('-inf')).to(q.dtype)[:, None]
    if seen.shape[1] > 1:  # else one line serves all queries
        mask = mask.repeat_interleave(group, 2)
    out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask)
    return out.unflatten(2, (tokens, group)).transpose(1, 2).flatten(2, 3)


def gather(k: Tensor, v: Tensor, batch: RowBatch, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return each slot's row of k and v [rows, kv_heads, max_tokens, head_dim].

    Values from `lengths` [slots] on are set to zero, because a weight of zero does not remove
    stale values that are not finite.
    """
    rows = batch.ids.clamp(min=0).long()
    valid = before(lengths, k.shape[2])[..., None]
    return torch.where(valid, k[rows], 0.0), torch.where(valid, v[rows], 0.0)


def _pieces(segment: Segment, lengths: Tensor, begins: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return keys, values and mask of each slot's piece of a ragged axis, up to its capacity."""
    most = segment.batch.capacity
    places = begins[:, None] + torch.arange(most, device=lengths.device)
    places = places.clamp(max=segment.k.shape[2] - 1).long()
    seen = before(lengths, most)
    valid = seen[..., None]
    keys, values = (part[0][:, places].transpose(0, 1) for part in (segment.k, segment.v))
    return torch.where(valid, keys, 0.0), torch.where(valid, values, 0.0), seen


def before(lengths: Tensor, most: int) -> Tensor:
    """Return bool [slots, 1, most]: which of `most` tokens precede lengths [slots]."""
    return (torch.arange(most, device=lengths.device) < lengths[:, None])[:, None]


def dense_store(new: Tensor, rows: Tensor, batch: RowBatch) -> None:
    """Store keys or values as `store_rows` does, by one indexed write.

    The index has a fixed size, so each token that must not be stored repeats the write of the
    first slot's first token, which must be stored if any token is. If no token must be stored, its
    place keeps its bytes. new: [slots, tokens, kv_heads, head_dim]; rows: [rows, kv_heads,
    max_tokens, head_dim].
    """
    slots, tokens, kv_heads, _ = new.shape
    most, device = rows.shape[2], rows.device
    number = torch.arange(tokens, device=device)
    at = batch.starts[:, None] + number
    valid = (batch.ids[:, None] >= 0) & (number < batch.counts[:, None]) & (at >= 0) & (at < most)
    valid = valid.flatten()
    source = torch.where(valid, torch.arange(slots * tokens, device=device), 0)
    row = batch.ids.clamp(min=0).long()[source // tokens]
    place = at.flatten()[source].clamp(0, most - 1).long()
    where = row[:, None], torch.arange(kv_heads, device=device), place[:, None]
    written = torch.where(valid[source, None, None], new.flatten(0, 1)[source], rows[where])
    rows.index_put_(where, written)
