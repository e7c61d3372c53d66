"""Minimum operations and bytes of each phase, from the dimensions alone."""

from __future__ import annotations

from embodied_kv.config import ModelConfig

BYTES = {'float32': 4, 'bfloat16': 2}


def layer_weights(width: int, mlp: int, heads: int, kv_heads: int, head_dim: int) -> int:
    """Return the matrix entries of one decoder layer."""
    return width * (heads + 2 * kv_heads) * head_dim + heads * head_dim * width + 3 * width * mlp


def backbone_weights(c: ModelConfig) -> int:
    b = c.backbone
    return b.layers * layer_weights(b.width, b.mlp, b.heads, b.kv_heads, b.head_dim)


def projection_weights(c: ModelConfig) -> int:
    """Return the matrix entries that project K and V of a prefix for cross attention, once."""
    b = c.backbone
    return 2 * len(c.cross_layers) * (b.kv_heads * b.head_dim) ** 2


def expert_weights(c: ModelConfig) -> int:
    b, e = c.backbone, c.expert
    layers, keys = len(range(0, b.layers, e.every)), 2 * e.width * b.kv_heads * b.head_dim
    own = layer_weights(e.width, e.mlp, b.heads, b.kv_heads, b.head_dim)
    return layers * own - len(c.cross_layers) * keys + projection_weights(c)


def attention_flops(c: ModelConfig, queries: int, keys: int, layers: int | None = None) -> int:
    """Return the FLOP of scores and mixing in `layers` layers; None: those of the backbone."""
    b = c.backbone
    layers = b.layers if layers is None else layers
    return 4 * layers * b.heads * b.head_dim * queries * keys


def prefill(c: ModelConfig, tokens: int, images: int) -> dict[str, float]:
    """Return FLOP and bytes of one prefix: vision of its images, backbone of its tokens.

    The last layer computes K and V only.
    """
    v, b = c.vision, c.backbone
    tower = v.layers * (4 * v.width**2 + 2 * v.width * v.mlp)
    last = layer_weights(b.width, b.mlp, b.heads, b.kv_heads, b.head_dim)
    used = backbone_weights(c) - last + 2 * b.width * b.kv_heads * b.head_dim
    used += projection_weights(c)
    flops = (
        2 * tower * v.patches * images
        + 4 * v.layers * v.width * v.patches**2 * images
        + 2 * used * tokens
        + attention_flops(c, tokens, tokens) * (b.layers - 1) / b.layers
    )
    return dict(flops=flops, bytes=(tower + used) * BYTES[c.dtype])


def denoise_step(c: ModelConfig, prefix: int, batch: int = 1) -> dict[str, float]:
    """Return FLOP and bytes of one Euler step over prefixes of that length."""
    b, cross = c.backbone, len(c.cross_layers)
    layers, weights = len(range(0, b.layers, c.expert.every)), expert_weights(c)
    weights -= projection_weights(c)
    read = c.kv_bytes_per_token * layers // c.kv_layers  # of a token of the prefix
    flops = batch * (
        2 * weights * c.chunk_size
        + attention_flops(c, c.chunk_size, prefix, layers)
        + attention_flops(c, c.chunk_size, c.chunk_size, layers - cross)
    )
    return dict(flops=flops, bytes=weights * BYTES[c.dtype] + batch * prefix * read)


def decode_step(c: ModelConfig, context: int, batch: int) -> dict[str, float]:
    """Return FLOP and bytes of one token for each of `batch` streams.

    All weights are read once, and each stream's own KV.
    """
    weights = backbone_weights(c) + c.backbone.vocab_size * c.backbone.width
    flops = batch * (2 * weights + attention_flops(c, 1, context))
    return dict(
        flops=flops,
        bytes=weights * BYTES[c.dtype]
        + batch * context * c.kv_bytes_per_token * c.backbone.layers // c.kv_layers,
    )
