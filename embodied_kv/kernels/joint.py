"""Attention over a row and the queries' own keys at once, in operations that a compiler sees.

`row_attention` reads rows where they lie, by a plan that is made for what is bound: a compiler
sees nothing of it. Here a slot's row is gathered beside its own keys, which costs one more reading
of the row, and all else is fused: for a short suffix that is by far the less.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from embodied_kv.kernels.rows import RowBatch


def joint_attention(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, batch: RowBatch
) -> Tensor:
    """Softmax attention of each slot's queries over its row's valid tokens and all its own.

    The scale is head_dim^-0.5. A slot that is padding sees its own alone.

    q: [slots, tokens, heads, head_dim]; k, v: the slots' own, [slots, tokens, kv_heads, head_dim];
    keys, values: [rows, kv_heads, max_tokens, head_dim], one layer of an arena whose rows are of
    one length in all layers. Shaped like q.
    """
    slots, tokens, heads, dim = q.shape
    kv_heads, most = keys.shape[1:3]
    group = heads // kv_heads
    rows = batch.ids.clamp(min=0).long()
    keys = torch.cat([keys[rows], k.transpose(1, 2)], 2)
    values = torch.cat([values[rows], v.transpose(1, 2)], 2)
    lengths = torch.where(batch.ids < 0, 0, batch.device_lengths[0][rows])
    at = torch.arange(most + tokens, device=q.device)
    seen = (at >= most) | (at < lengths[:, None])
    mask = torch.where(seen, 0.0, float('-inf')).to(q.dtype)[:, None, None]
    # The heads that share a KV head are folded into the queries.
    folded = q.unflatten(2, (kv_heads, group)).transpose(1, 2).flatten(2, 3)
    mask = mask.expand(slots, 1, tokens * group, most + tokens)
    out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask)
    return out.unflatten(2, (tokens, group)).transpose(1, 2).flatten(2, 3)
