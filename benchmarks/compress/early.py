"""FastV and HiRED: prefixes whose vision tokens are dropped during or before their computation.

Computed eagerly, one frame at a time, for comparison with methods that drop tokens afterwards.
Surviving tokens keep their original positions. Knows the model and the rules of both methods; does
not know rows.
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
    """A prefix of which each layer has a subset of the tokens.

    positions: of each layer, int64 [tokens], ascending. keys, values: [kv_heads, tokens, head_dim]
    of each layer.
    """

    positions: list[Tensor]
    keys: list[Tensor]
    values: list[Tensor]


class _Recorded(DenseView):
    """A dense view of tokens that see each other; it records the K and V of each layer."""

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
    """Prefill packed embeddings [n, width]; layer i sees only the tokens kept[i].

    kept: of each layer, int64 positions, ascending; each is a subset of the layer before's.
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
    """Return the positions that each layer sees, of `vision` and then `text` tokens.

    asked: attention [heads, n or more] of the last text query in layer `FastV.drop_after` - 1.
    """
    rule, every = FastV(), torch.arange(vision + text, device=asked.device)
    survivors = rule.survivors(asked, every[:vision], rule.kept(keep_ratio, layers, vision, text))
    later = torch.cat([survivors, every[vision:]])
    return [every] * rule.drop_after + [later] * (layers - rule.drop_after)


def hired_kept(
    keep_ratio: float, layers: int, vision: int, text: int, first: Tensor, last: Tensor
) -> list[Tensor]:
    """Return the positions that each layer sees. first, last: `tower_attention` of the views."""
    rule = HiRed()
    chosen = rule.select(first, last, rule.kept(keep_ratio, vision, text))
    views = [view * first.shape[1] + tokens for view, tokens in enumerate(chosen)]
    behind = torch.arange(vision, vision + text, device=first.device)
    return [torch.cat([*views, behind])] * layers


def tower_attention(model: Pi05, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the attention that image tokens receive in the tower's first and last layer.

    Both are float32 [views, tokens]: means over the queries and heads of a view, and over the
    patches of a merged token. images: [views, 3, size, size].
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
