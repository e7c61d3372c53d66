"""The vision tower: SigLIP, an optional patch merge, and the projector to the backbone's width.

The caller leaves out absent views. Tokens are scaled only with `ModelConfig.scales_images`.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from embodied_kv.config import ModelConfig, VisionConfig
from embodied_kv.model.layers import embedding


class Embeddings(nn.Module):
    """The patch convolution and the position table of SigLIP."""

    def __init__(self, c: VisionConfig) -> None:
        super().__init__()
        self.patch_embedding = nn.Conv2d(3, c.width, c.patch_size, stride=c.patch_size)
        self.position_embedding = embedding(c.patches, c.width)


class Attention(nn.Module):
    """Attention of all patches of an image to one another.

    attend: the attention, of q, k and v [B, heads, patches, head_dim] -> like q.
    """

    def __init__(self, c: VisionConfig) -> None:
        super().__init__()
        self.heads, self.attend = c.heads, F.scaled_dot_product_attention
        self.k_proj, self.v_proj, self.q_proj, self.out_proj = (
            nn.Linear(c.width, c.width) for _ in range(4)
        )

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v [B, heads, patches, head_dim]."""
        projections = self.q_proj, self.k_proj, self.v_proj
        q, k, v = (p(hidden).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in projections)
        return q, k, v

    def forward(self, hidden: Tensor) -> Tensor:
        attended = self.attend(*self.project(hidden))
        return self.out_proj(attended.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear layers around the approximated GELU."""

    def __init__(self, c: VisionConfig) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(c.width, c.mlp), nn.Linear(c.mlp, c.width)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(hidden), approximate='tanh'))


class Layer(nn.Module):
    """Attention and feed-forward, each behind its LayerNorm and added to its input."""

    def __init__(self, c: VisionConfig) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(c.width, eps=c.eps)
        self.self_attn = Attention(c)
        self.layer_norm2 = nn.LayerNorm(c.width, eps=c.eps)
        self.mlp = FeedForward(c)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.self_attn(self.layer_norm1(hidden))
        return hidden + self.mlp(self.layer_norm2(hidden))


class Siglip(nn.Module):
    """The encoder of SigLIP without a pooling head, with the parameter names of transformers.

    Source: Zhai et al., Sigmoid Loss for Language Image Pre-Training (2023). transformers has the
    same model, but its import takes as long as all other imports of a robot together.
    """

    def __init__(self, c: VisionConfig) -> None:
        super().__init__()
        if c.width % c.heads:
            raise ValueError(f'vision.heads must divide vision.width {c.width} (got {c.heads})')
        self.embeddings = Embeddings(c)
        self.encoder = nn.Module()
        self.encoder.layers = nn.ModuleList(Layer(c) for _ in range(c.layers))
        self.post_layernorm = nn.LayerNorm(c.width, eps=c.eps)


def merge_patches(features: Tensor, merge: int) -> Tensor:
    """Concatenate the features of each merge x merge square of patches, in row-major order.

    features: [B, side * side, width] -> [B, (side / merge) ** 2, merge * merge * width].
    """
    if merge == 1:
        return features
    batch, patches, width = features.shape
    side = int(patches**0.5)
    squares = features.view(batch, side // merge, merge, side // merge, merge, width)
    return squares.transpose(2, 3).reshape(batch, patches // merge**2, merge**2 * width)


class VisionTower(nn.Module):
    """Images [B, 3, S, S] in [-1, 1] -> tokens [B, config.vision.tokens, backbone width].

    `tower.*` has the parameter names of SigLIP; `projector` is one linear layer.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        vision = config.vision
        side = vision.image_size // vision.patch_size
        if side % vision.merge:
            raise ValueError(f'vision.merge {vision.merge} does not divide {side} patches a side')
        self.merge = vision.merge
        self.image_size = vision.image_size
        self.tower = Siglip(vision)
        width = config.backbone.width
        self.scale = width**0.5 if config.scales_images else 1.0
        self.projector = nn.Linear(
            vision.width * vision.merge**2, width, bias=vision.projector_bias
        )

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.project(self.encode(self.embed_patches(images)))
        return tokens if self.scale == 1 else tokens * self.scale

    def embed_patches(self, images: Tensor) -> Tensor:
        """Return [B, patches, vision width] of images: patch convolution, bias, position table."""
        size = self.image_size
        if images.shape[1:] != (3, size, size):
            raise ValueError(f'images are {list(images.shape)}, expected [B, 3, {size}, {size}]')
        table = self.tower.embeddings
        patches = table.patch_embedding(images.to(table.patch_embedding.weight.dtype))
        return patches.flatten(2).mT + table.position_embedding.weight

    def encode(self, patches: Tensor) -> Tensor:
        """Return [B, patches, vision width] after the encoder layers and the last LayerNorm."""
        hidden = patches
        for layer in cast(nn.ModuleList, self.tower.encoder.layers):
            hidden = layer(hidden)
        return self.tower.post_layernorm(hidden)

    def project(self, hidden: Tensor) -> Tensor:
        """Return [B, tokens, backbone width] of [B, patches, vision width]."""
        return self.projector(merge_patches(hidden, self.merge))
