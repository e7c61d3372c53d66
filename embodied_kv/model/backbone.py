"""The language backbone: decoder layers over a cache view, token table and head.

The same `layer` prefills prefixes and extends decode streams; the cache view determines which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from embodied_kv.config import BackboneConfig
from embodied_kv.kv.views import KvView
from embodied_kv.model.layers import PlainLayer, Rope, embedding, fill, plain_norm

M = TypeVar('M', bound='BackboneModel')


class Backbone(nn.Module):
    """Token table, layers, final norm, and a head, which may be the token table (tied)."""

    def __init__(self, c: BackboneConfig) -> None:
        super().__init__()
        self.config = c
        self.embed = embedding(c.vocab_size, c.width)
        layers = nn.ModuleList(PlainLayer(c.width, c.mlp, c) for _ in range(c.layers))
        self.layers = cast(Sequence[PlainLayer], layers)
        self.norm = plain_norm(c.width, c)
        if c.has_own_head:
            self.head = nn.Linear(c.width, c.vocab_size, bias=False)
        self._rope = Rope(c.head_dim, c.rope_theta, c.rope_scaling)
        self._local_rope = Rope(c.head_dim, c.local_theta)

    @property
    def wavelengths(self) -> Tensor:
        """Return the wavelengths, float32 [layers, head_dim / 2]; [1, ...] if all layers agree."""
        c = self.config
        if not c.local_layers:
            return self._rope.wavelengths[None].cpu()
        ropes = (self._local_rope if i in c.local_layers else self._rope for i in range(c.layers))
        return torch.stack([rope.wavelengths.cpu() for rope in ropes])

    def rope(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cos, sin of positions [..., T] for `layer`: [..., T, 1, head_dim / 2].

        With local layers both begin with an axis of two: other layers, local layers.
        """
        rope = self._rope(positions, dtype)
        if not self.config.local_layers:
            return rope
        pairs = zip(rope, self._local_rope(positions, dtype), strict=True)
        cos, sin = (torch.stack(pair) for pair in pairs)
        return cos, sin

    def embed_tokens(self, ids: Tensor) -> Tensor:
        """Return [..., T, width] of ids [..., T], times sqrt(width) if the model scales them."""
        embedded = self.embed(ids)
        return embedded * self.config.width**0.5 if self.config.scales_tokens else embedded

    def layer(self, i: int, hidden: Tensor, cache: KvView, rope: tuple[Tensor, Tensor]) -> Tensor:
        """Return hidden [B, T, width] after layer i, which stores its K and V through `cache`."""
        if local := self.config.local_layers:
            cos, sin = (table[int(i in local)] for table in rope)
            rope = cos, sin
        return self.layers[i](i, hidden, cache, rope)

    def fill(self, hidden: Tensor, positions: Tensor, cache: KvView) -> Tensor:
        """Store K and V of hidden [B, T, width] in every layer; return the last layer's input."""
        return fill(self.layers, hidden, cache, self.rope(positions, hidden.dtype))

    def forward(self, hidden: Tensor, positions: Tensor, cache: KvView) -> Tensor:
        """Return hidden [B, T, width] at logical positions [B, T] after the final norm."""
        rope = self.rope(positions, hidden.dtype)
        for i in range(self.config.layers):
            hidden = self.layer(i, hidden, cache, rope)
        return self.norm(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 [..., vocab] of hidden [..., width] after the final norm."""
        if self.config.has_own_head:  # a layer, because its weight may be packed
            return self.head(hidden).float()
        return F.linear(hidden, self.embed.weight).float()


class BackboneModel(nn.Module):
    """A model around a backbone."""

    backbone: Backbone

    @classmethod
    def empty(cls: type[M], config: Any, device: str) -> M:
        """Return a model in the dtype of the config with uninitialised weights."""
        with torch.device('meta'):
            model = cls(config)
        dtype = getattr(torch, config.dtype)
        for module in model.modules():  # `to_empty` of meta tensors imports sympy
            for name, weight in [*module.named_parameters(recurse=False)]:
                empty = torch.empty(weight.shape, dtype=dtype, device=device)
                setattr(module, name, nn.Parameter(empty, requires_grad=False))
        return model.eval()

    @property
    def device(self) -> torch.device:
        return self.backbone.embed.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.backbone.embed.weight.dtype


def arange_positions(batch: int, length: int, device: torch.device) -> Tensor:
    """Return the positions of a packed prefix: 0 .. length-1 in each slot, [batch, length]."""
    return torch.arange(length, device=device).expand(batch, length)
