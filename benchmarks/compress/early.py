"""FastV and HiRED: prefixes whose vision tokens were dropped while, or before, they were computed.

Eager, one frame at a time, to be compared with what is dropped afterwards. Survivors keep their
original positions. Knows the model and the two methods' rules; does not know rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.compress.fastv import FastV
from benchmarks.compress.hired import HiRed
from benchmarks.frame.predict import DenseView
from embodied_kv.model.pi05 import Pi05
from embodied_kv.model.vision import merge_patches


@dataclass(frozen=True, eq=False)
class ThinnedPrefix:
    """A prefix of which each layer has some tokens.

    positions: of each layer, int64 [tokens], ascending. keys, values: [kv_heads, tokens, head_dim]
    of each.
    """

    positions: list[Tensor]
    keys: list[Tensor]
    values: list[Tensor]


class _Recorded(DenseView):
    """Tokens that see each other, and whose K and V of each layer are kept."""

    def __init__(self, tokens: int, device: torch.device, into: ThinnedPrefix) -> None:
        super().__init__(1, tokens, device)
        self._into = into

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        self._into.keys.append(k[0].transpose(0, 1))
        self._into.values.append(v[0].transpose(0, 1))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.store(layer, q, k, v)
        return super().attend(layer, q, k, v)


def thinned(model: Pi05, embeddings: Tensor, kept: list[Tensor]) -> ThinnedPrefix:
    """The prefill of packed embeddings [n, width] of which layer i sees the tokens kept[i] only.

    kept: of each layer, int64 positions, ascending; each a part of those of the layer before.
    """
    backbone, made = model.backbone, ThinnedPrefix(list(kept), [], [])
    last = len(kept) - 1
    hidden, here, cache, rope = embeddings[None], None, None, None
    for i, positions in enumerate(kept):
        if here is None or len(here) != len(positions):
            hidden = hidden[:, positions if here is None else torch.searchsorted(here, positions)]
            here = positions
            cache = _Recorded(len(here), embeddings.device, made)
            rope = backbone.rope(here[None], embeddings.dtype)
        if i < last:
            hidden = backbone.layer(i, hidden, cache, rope)
    layer = backbone.layers[last]
    cache.store(last, *layer.project(layer.attn_norm(hidden), rope))
    return made


def fastv_kept(
    keep_ratio: float, layers: int, vision: int, text: int, asked: Tensor
) -> list[Tensor]:
    """Positions that each layer sees, of `vision` tokens and `text` tokens behind them.

    asked: attention [heads, n or more] of the last text query in layer `FastV.drop_after` - 1.
    """
    rule, every = FastV(), torch.arange(vision + text, device=asked.device)
    survivors = rule.survivors(asked, every[:vision], rule.kept(keep_ratio, layers, vision, text))
    later = torch.cat([survivors, every[vision:]])
    return [every] * rule.drop_after + [later] * (layers - rule.drop_after)


def hired_kept(
    keep_ratio: float, layers: int, vision: int, text: int, first: Tensor, last: Tensor
) -> list[Tensor]:
    """Positions that each layer sees. first, last: `tower_attention` of the views."""
    rule = HiRed()
    chosen = rule.select(first, last, rule.kept(keep_ratio, vision, text))
    views = [view * first.shape[1] + tokens for view, tokens in enumerate(chosen)]
    behind = torch.arange(vision, vision + text, device=first.device)
    return [torch.cat([*views, behind])] * layers


def tower_attention(model: Pi05, images: Tensor) -> tuple[Tensor, Tensor]:
    """What each image token gets in the tower's first and last layer, float32 [views, tokens].

    Meant over queries and heads of its view; of merged patches, over the patches. images:
    [views, 3, size, size].
    """
    vision, inputs = model.vision, {}
    ends = {0, len(vision.tower.encoder.layers) - 1}
    hooks = [
        vision.tower.encoder.layers[i].layer_norm1.register_forward_hook(
            lambda module, given, normed, i=i: inputs.update({i: normed})
        )
        for i in ends
    ]
    try:
        vision.encode(vision.embed_patches(images))
    finally:
        for hook in hooks:
            hook.remove()
    scores = []
    for i in (min(ends), max(ends)):
        layer = vision.tower.encoder.layers[i].self_attn
        q, k = (projected.float() for projected in layer.project(inputs[i])[:2])
        got = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1).mean((1, 2))  # [views, patches]
        scores.append(merge_patches(got[..., None], vision.merge).mean(-1))
    return scores[0], scores[1]
