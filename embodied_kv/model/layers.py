"""The transformer layer of the backbone and the action expert, and rotary positions.

The cache is an argument (`kv.views`), so the layer is independent of rows and decode streams.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes

from embodied_kv.config import BackboneConfig
from embodied_kv.kv.views import KvView, SuffixRead
from embodied_kv.runtime.stream import Stream

# Activation of the gate in the feed-forward, by kind of backbone.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    'gemma': partial(F.gelu, approximate='tanh'),
    'llama': F.silu,
}


def embedding(count: int, width: int) -> nn.Embedding:
    """Return an embedding with uninitialised weights [count, width].

    The initialisation of nn.Embedding on the device 'meta' imports torch._dynamo, which takes as
    long as the import of torch.
    """
    return nn.Embedding.from_pretrained(torch.empty(count, width), freeze=False)


class Rope:
    """Rotary positions, half-split: the first half of a head rotates against the second.

    Angles are float32; cos and sin are cast to the dtype of the input, as in the references.
    """

    def __init__(self, head_dim: int, theta: float, scaling: Sequence[float] = ()) -> None:
        self.wavelengths = wavelengths(head_dim, theta, scaling)

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cos, sin [..., T, 1, head_dim / 2] of positions [..., T], for every layer."""
        if self.wavelengths.device != positions.device:
            self.wavelengths = self.wavelengths.to(positions.device)
        angles = positions[..., None, None].float() / self.wavelengths
        return angles.cos().to(dtype), angles.sin().to(dtype)


def wavelengths(head_dim: int, theta: float, scaling: Sequence[float] = ()) -> Tensor:
    """Return theta^(2i / head_dim), float32 [head_dim / 2] (positions/rad), on the CPU.

    scaling: (factor,) multiplies them. (factor, low, high, tokens), as in Llama 3.1, multiplies
    those that turn fewer than `low` times in so many tokens, and keeps those that turn more than
    `high` times; the frequencies in between are interpolated.
    """
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float32, device='cpu') / head_dim
    unscaled = theta**exponent
    if not scaling:
        return unscaled
    factor, *band = scaling
    kept = torch.zeros((), device='cpu')
    if band:
        low, high, tokens = band
        kept = ((tokens / (2 * math.pi * unscaled) - low) / (high - low)).clamp(0, 1)
    return unscaled / ((1 - kept) / factor + kept)


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Return x [B, T, heads, head_dim] rotated by its positions; four kernels."""
    cos, sin = rope
    halves = x.unflatten(-1, (2, -1))  # [B, T, heads, 2, head_dim / 2]
    turned, across = halves * cos.unsqueeze(-2), halves * sin.unsqueeze(-2)
    first, second = across.unbind(-2)
    turned.select(-2, 0).sub_(second)
    turned.select(-2, 1).add_(first)
    return turned.view(x.shape)


class RmsNorm(nn.Module):
    """x / rms(x) * (offset + weight), statistics in float32.

    offset: 1 in Gemma, 0 in Llama. In inference mode the float32 sum with a frozen weight is
    cached, and recomputed when the weight is replaced or written in place. A write through
    `weight.data` is not detected.
    """

    def __init__(self, width: int, eps: float, offset: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((width,), 1.0 - offset))
        self.eps, self.offset = eps, offset
        self._made: tuple[int, int, Tensor, Tensor] | None = None  # see `_new_scale`

    def forward(self, x: Tensor) -> Tensor:
        return rms(x, self.scale(), self.eps)

    def scale(self) -> Tensor:
        """Return offset + weight, float32 [width]."""
        weight = self.weight
        if weight.requires_grad or weight.is_inference() or not torch.is_inference_mode_enabled():
            return self.offset + weight.float()
        if self._made is not None:
            owner, version, of, scale = self._made
            written = weight._version != version or weight.data_ptr() != of.data_ptr()
            if owner == id(weight) and not written:
                return scale
        return self._new_scale()

    @torch.inference_mode(False)
    @torch.no_grad()
    def _new_scale(self) -> Tensor:
        """Recompute the scale for all threads and streams.

        Captured graphs read the former tensor, so the scale is written in place. Neither a trace
        nor a dispatch mode of the surrounding computation records this.
        """
        weight, former = self.weight, self._made and self._made[-1]
        version = weight._version
        with _disable_current_modes():
            of = weight.detach()  # keeps its address from reuse by another weight
            scale = self.offset + of.float()
            if former is not None and (former.device, former.shape) == (scale.device, scale.shape):
                scale = former.copy_(scale)
            Stream.current(scale.device).synchronize()
        self._made = id(weight), version, of, scale
        return scale


def rms(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * scale, computed in float32, in the dtype of x."""
    return F.rms_norm(x.float(), scale.shape[-1:], scale, eps).to(x.dtype)


class DecoderLayer(nn.Module):
    """The matrices of one layer over a cache; q, k, v are one product, gate and up another.

    width, mlp: of this layer. is_cross: keys and values are projections of those of the backbone
    (`cross_kv`), not of x. A subclass adds the two norms, `attn_norm` and `mlp_norm`.
    """

    attn_norm: nn.Module
    mlp_norm: nn.Module

    def __init__(self, width: int, mlp: int, b: BackboneConfig, is_cross: bool = False) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = b.heads, b.kv_heads, b.head_dim
        self.activation = ACTIVATIONS[b.kind]
        queries, keys = b.heads * b.head_dim, b.kv_heads * b.head_dim
        if is_cross:
            self.q = nn.Linear(width, queries, bias=False)
            self.k, self.v = (nn.Linear(keys, keys, bias=False) for _ in range(2))
        else:
            self.qkv = nn.Linear(width, queries + 2 * keys, bias=b.qkv_bias)
        self.o = nn.Linear(queries, width, bias=False)
        self.gate_up = nn.Linear(width, 2 * mlp, bias=False)
        self.down = nn.Linear(mlp, width, bias=False)
        self.has_qk_norm = b.qk_norm
        if b.qk_norm:
            self.q_norm, self.k_norm = (plain_norm(b.head_dim, b) for _ in range(2))

    def project(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated q [B, T, heads, D] and k, v [B, T, kv_heads, D] of normed x [B, T, W]."""
        qkv = self.qkv(x).unflatten(-1, (-1, self.head_dim))
        turned, v = qkv.split([self.heads + self.kv_heads, self.kv_heads], dim=2)
        if self.has_qk_norm:
            q, k = turned.split([self.heads, self.kv_heads], dim=2)
            turned = torch.cat([self.q_norm(q), self.k_norm(k)], 2)
        q, k = rotate(turned, rope).split([self.heads, self.kv_heads], dim=2)
        return q, k, v

    def attention(
        self, layer: int, x: Tensor, cache: KvView, rope: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Return the attention branch of normed x [B, T, W]."""
        return self.o(cache.attend(layer, *self.project(x, rope)).flatten(2))

    def cross_kv(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of this cross layer, projected from those of the backbone."""
        pairs = (self.k, k), (self.v, v)
        k, v = (linear(part.flatten(2)).view_as(part) for linear, part in pairs)
        return k, v

    def cross_attention(
        self, layer: int, x: Tensor, cache: SuffixRead, rope: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Return the attention branch of normed x [B, T, W], which reads the prefix alone."""
        q = rotate(self.q(x).unflatten(-1, (-1, self.head_dim)), rope)
        return self.o(cache.attend_prefix(layer, q).flatten(2))

    def feed_forward(self, x: Tensor) -> Tensor:
        """Return the gated branch of normed x [B, T, W]."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(self.activation(gate) * up)


class PlainLayer(DecoderLayer):
    """A decoder layer with plain norms, before its branches and, in some models, behind them."""

    def __init__(self, width: int, mlp: int, b: BackboneConfig, is_cross: bool = False) -> None:
        super().__init__(width, mlp, b, is_cross)
        self.attn_norm, self.mlp_norm = (plain_norm(width, b) for _ in range(2))
        self.attn_out_norm, self.mlp_out_norm = (
            plain_norm(width, b) if b.branch_norms else nn.Identity() for _ in range(2)
        )

    def forward(
        self, layer: int, hidden: Tensor, cache: KvView, rope: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Return hidden [B, T, W] after this layer, which stores its K and V through `cache`."""
        attended = self.attention(layer, self.attn_norm(hidden), cache, rope)
        hidden = hidden + self.attn_out_norm(attended)
        return hidden + self.mlp_out_norm(self.feed_forward(self.mlp_norm(hidden)))


def plain_norm(width: int, b: BackboneConfig) -> RmsNorm:
    """Return a norm of the kind in the backbone."""
    return RmsNorm(width, b.eps, offset=1 if b.kind == 'gemma' else 0)


def fill(
    layers: Sequence[DecoderLayer], hidden: Tensor, cache: KvView, rope: tuple[Tensor, Tensor]
) -> Tensor:
    """Store K and V of hidden [B, T, W] in every layer; return the last layer's input.

    The attention and feed-forward of the last layer are skipped: their result is not read.
    """
    last = len(layers) - 1
    for i in range(last):
        hidden = layers[i](i, hidden, cache, rope)
    layer = layers[last]
    cache.store(last, *layer.project(layer.attn_norm(hidden), rope))
    return hidden
