"""The vision tower: SigLIP, an optional patch merge, and the projector to the backbone's width.

The caller leaves out absent views. Image features are not scaled: pi0.5 only scales tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from embodied_kv.config import ModelConfig, VisionConfig


def siglip(config: VisionConfig) -> nn.Module:
    """Return the SigLIP encoder of transformers with uninitialised weights.

    transformers is imported lazily: it takes as long as all other imports together.
    """
    from transformers import SiglipVisionConfig, SiglipVisionModel

    with torch.device('meta'):
        tower = SiglipVisionModel(
            SiglipVisionConfig(
                hidden_size=config.width,
                intermediate_size=config.mlp,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                image_size=config.image_size,
                patch_size=config.patch_size,
                layer_norm_eps=config.eps,
                hidden_act='gelu_pytorch_tanh',
                vision_use_head=False,
                attn_implementation='sdpa',
            )
        )
    # transformers 4 nests the encoder as .vision_model, transformers 5 does not.
    tower = getattr(tower, 'vision_model', tower)
    return tower.to_empty(device=torch.get_default_device())


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

    `tower.*` has the parameter names of SigLIP; `projector` is one linear layer with a bias.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        vision = config.vision
        side = vision.image_size // vision.patch_size
        if side % vision.merge:
            raise ValueError(f'vision.merge {vision.merge} does not divide {side} patches a side')
        self.merge = vision.merge
        self.image_size = vision.image_size
        self.tower = siglip(vision)
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
        hidden = self.tower.encoder(inputs_embeds=patches).last_hidden_state
        return self.tower.post_layernorm(hidden)

    def project(self, hidden: Tensor) -> Tensor:
        """Return [B, tokens, backbone width] of [B, patches, vision width]."""
        return self.projector(merge_patches(hidden, self.merge))
