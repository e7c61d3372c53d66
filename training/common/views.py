"""Views of the cache for training, with the interface of the serving views: `attend`, `store`.

The serving views (`kv.views`) write rows of an arena in place, which autograd cannot follow. These
views keep K and V as autograd tensors, for a right-padded batch, with the same visibility as the
serving views. They know no losses. Attention is two batched products: on a CPU the backward pass
of the fused kernel costs several times as much. q: [B, T, heads, head_dim]; k, v: [B, T, kv_heads,
head_dim].
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

UNSEEN = -1e30  # finite: the softmax of a fully masked row is uniform, not NaN


def seen(mask: Tensor) -> Tensor:
    """Return float32 to add to scores: 0 where the mask is True, else UNSEEN."""
    return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, UNSEEN)


def dense_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Return softmax attention in float32 with scale head_dim^-0.5, shaped like q.

    mask: additive [B, 1 or T, N], the same for all heads.
    """
    batch, tokens, heads, dim = q.shape
    kv_heads = k.shape[2]
    group = heads // kv_heads
    # Query heads that share K and V become more queries: [B * kv_heads, T * group, D].
    q = q.unflatten(2, (kv_heads, group)).transpose(1, 2).reshape(-1, tokens * group, dim)
    k, v = (x.transpose(1, 2).flatten(0, 1) for x in (k, v))  # [B * kv_heads, N, D]
    if kv_heads > 1:
        mask = mask.repeat_interleave(kv_heads, 0)
    if mask.shape[1] > 1:
        mask = mask.repeat_interleave(group, 1)
    scores = torch.baddbmm(mask, q, k.mT, alpha=dim**-0.5)
    out = torch.bmm(scores.softmax(-1), v)
    return out.view(batch, kv_heads, tokens, group, dim).transpose(1, 2).flatten(2, 3)


class PrefixCache:
    """Keeps K and V of every layer; each token sees the valid tokens of its sample.

    lengths: long [B], valid tokens. width: tokens of the padded batch.
    """

    def __init__(self, lengths: Tensor, width: int) -> None:
        self.lengths = lengths
        self.visible = seen(torch.arange(width, device=lengths.device) < lengths[:, None])  # [B,N]
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._mask = self.visible[:, None]

    def remember(self, layers: Mapping[int, tuple[Tensor, Tensor]], visible: Tensor) -> None:
        """Let readers of the prefix see KV of earlier frames, too.

        layers: K and V [B, N, kv_heads, head_dim]; only of the layers that are read. visible:
        bool [B, N].
        """
        self.visible = torch.cat([seen(visible), self.visible], dim=1)
        for layer, (k, v) in self.layers.items():
            earlier_k, earlier_v = layers[layer]
            self.layers[layer] = torch.cat([earlier_k, k], 1), torch.cat([earlier_v, v], 1)

    def append(self, recall: RecallCache) -> None:
        """Append the recall tokens: readers see them behind the prefix."""
        self.visible = torch.cat([self.visible, seen(recall.valid)], dim=1)
        self.lengths = self.lengths + recall.valid.sum(1)
        for layer, parts in self.layers.items():
            pairs = zip(parts, recall.layers[layer], strict=True)
            k, v = (torch.cat(pair, 1) for pair in pairs)
            self.layers[layer] = k, v

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        self.layers[layer] = k, v

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.store(layer, q, k, v)
        return dense_attention(q, k, v, self._mask)


class _Read:
    """View of a prefix and the current tokens; it stores nothing.

    own: bool [B * draws, 1 or T, T], which of the current tokens are visible. draws: consecutive
    batch entries that share one prefix.
    """

    def __init__(self, prefix: PrefixCache, own: Tensor, draws: int = 1) -> None:
        self._prefix, self._draws = prefix, draws
        visible = prefix.visible.repeat_interleave(draws, 0)[:, None].expand(-1, own.shape[1], -1)
        self._mask = torch.cat([visible, seen(own)], dim=-1)

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Do nothing: no later token reads these tokens."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # Few heads are shared by many queries, so these copies are small.
        keys, values = (
            torch.cat([past.repeat_interleave(self._draws, 0), new], dim=1)
            for past, new in zip(self._prefix.layers[layer], (k, v), strict=True)
        )
        return dense_attention(q, keys, values, self._mask)


class SuffixCache(_Read):
    """Blocks of action slots [B * draws, block]: each sees its sample's prefix and all of itself.

    The draws of a sample are separate entries of the batch, so that they do not see one another.
    """

    def __init__(self, prefix: PrefixCache, draws: int, block: int) -> None:
        slots = len(prefix.lengths) * draws
        own = torch.ones(slots, 1, block, dtype=torch.bool, device=prefix.lengths.device)
        super().__init__(prefix, own, draws)
        start = prefix.lengths.repeat_interleave(draws)
        self.positions = start[:, None] + torch.arange(block, device=start.device)  # logical


class SegmentCache(_Read):
    """Packed segments: each token sees the prefix and, causally, its own segment.

    segment: long [B, T], index of each token's segment; -1 is padding.
    """

    def __init__(self, prefix: PrefixCache, segment: Tensor) -> None:
        same = segment[:, :, None] == segment[:, None, :]
        super().__init__(prefix, same.tril() & (segment >= 0)[:, None, :])


class RecallCache(_Read):
    """Recall tokens: each sees memory rows, prefix and, causally, the other recall tokens.

    valid: bool [B, R], right-padded. positions: long [B, R]. layers: K and V of every layer, [B,
    R, kv_heads, head_dim].
    """

    def __init__(self, prefix: PrefixCache, valid: Tensor) -> None:
        tokens = torch.arange(valid.shape[1], device=valid.device)
        super().__init__(prefix, (tokens[:, None] >= tokens) & valid[:, None])
        self.valid, self.positions = valid, prefix.lengths[:, None] + tokens
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        self.layers[layer] = k, v

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.store(layer, q, k, v)
        return super().attend(layer, q, k, v)
