"""Attention over several segments at once, in operations that a compiler sees.

`row_attention` reads rows where they lie, by a plan that is made for what is bound: a compiler
sees nothing of it. Here the segments are laid side by side, which costs one more reading of the
rows, and all else is fused: for a few queries that is by far the less.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from embodied_kv.kernels.rows import RowBatch


def joint_attention(q: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """Softmax attention of each slot's queries over the keys that they see, scale head_dim^-0.5.

    q: [slots, tokens, heads, head_dim]; keys, values: [slots, kv_heads, keys, head_dim]; seen:
    bool [slots, tokens or 1, keys], at least one of each query. Shaped like q.
    """
    slots, tokens, heads, _ = q.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    # The heads that share a KV head are folded into the queries.
    folded = q.unflatten(2, (kv_heads, group)).transpose(1, 2).flatten(2, 3)
    mask = torch.where(seen, 0.0, float('-inf')).to(q.dtype)[:, None]
    if seen.shape[1] > 1:  # else one line serves all queries, and is not written for each
        mask = mask.repeat_interleave(group, 2)
    out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask)
    return out.unflatten(2, (tokens, group)).transpose(1, 2).flatten(2, 3)


def gathered(k: Tensor, v: Tensor, batch: RowBatch, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Each slot's row of k and v [rows, kv_heads, max_tokens, head_dim]; zero from lengths on.

    What lay there before may be not finite, and no weight makes that zero. lengths: [slots].
    """
    rows = batch.ids.clamp(min=0).long()
    valid = before(lengths, k.shape[2])[..., None]
    return torch.where(valid, k[rows], 0.0), torch.where(valid, v[rows], 0.0)


def before(lengths: Tensor, most: int) -> Tensor:
    """bool [slots, 1, most]: which of `most` tokens lie before lengths [slots]."""
    return (torch.arange(most, device=lengths.device) < lengths[:, None])[:, None]
