"""pi0.5: vision tower, backbone, action expert and language head around a KV cache it is handed.

Black et al., pi0.5 (2025), in the conventions of the public PyTorch references. The prefix is one
bidirectional block of valid tokens, packed: absent views and padding take no room in the cache,
and positions are 0 .. n-1. Actions and words both read it.
"""

from __future__ import annotations

from torch import Tensor

from embodied_kv.config import ModelConfig
from embodied_kv.kv.views import KvView, TailAppend
from embodied_kv.model.backbone import Backbone, BackboneModel, arange_positions
from embodied_kv.model.expert import Expert, Modulation
from embodied_kv.model.vision import VisionTower


class Pi05(BackboneModel):
    """The whole model; all methods are meant for inference_mode but for training's own use."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.vision = VisionTower(config)
        self.backbone = Backbone(config.backbone)
        self.expert = Expert(config.expert, config.backbone, config.padded_action_dim)

    def embed_images(self, images: Tensor) -> Tensor:
        """images [N, 3, S, S] in [-1, 1] -> [N, tokens, width]; not scaled."""
        return self.vision(images)

    def embed_tokens(self, ids: Tensor) -> Tensor:
        """ids [..., T] -> [..., T, width]; scaled by sqrt(width)."""
        return self.backbone.embed_tokens(ids)

    def prefill(
        self, embeddings: Tensor, cache: KvView, last_hidden: bool = False
    ) -> Tensor | None:
        """Writes packed prefix embeddings [B, N, width] through `cache`; equation 1 of OxyGen.

        Returns the hidden states after the final norm only where they are asked for.
        """
        positions = arange_positions(*embeddings.shape[:2], embeddings.device)
        if last_hidden:
            return self.backbone(embeddings, positions, cache)
        self.backbone.fill(embeddings, positions, cache)
        return None

    def suffix_rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rotary tables of action slots at logical positions [B, chunk].

        Each slot begins at its number of valid prefix tokens.
        """
        return self.expert.rope(positions, self.dtype)

    def velocity(
        self, x: Tensor, modulation: Modulation, cache: KvView, rope: tuple[Tensor, Tensor]
    ) -> Tensor:
        """v(x_t, t) of flow matching: x_t float32 [B, chunk, padded_action_dim] -> the same."""
        hidden = self.expert.embed(x.to(self.dtype))
        return self.expert.action_out(self.expert(hidden, modulation, cache, rope)).float()

    def extend(self, ids: Tensor, cache: TailAppend) -> Tensor:
        """Appends ids [B, T] to the decode streams of `cache` -> logits.

        The logits are float32 [B, vocab], after each slot's last own id.
        """
        hidden = self.backbone(self.embed_tokens(ids), cache.positions, cache)
        return self.backbone.logits(cache.newest(hidden))
