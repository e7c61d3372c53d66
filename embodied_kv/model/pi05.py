"""pi0.5 and pi0: vision tower, backbone, action expert and language head around a KV cache view.

Black et al., pi0 (2024) and pi0.5 (2025), in the conventions of the public references. The prefix
is one bidirectional block of packed valid tokens: absent views and padding occupy no cache, and
positions are 0 .. n-1. Actions and language both read the prefix. pi0 adds a state token behind
it, which only actions read.
"""

from __future__ import annotations

from torch import Tensor

from embodied_kv.config import ModelConfig
from embodied_kv.kv.views import KvView, PrefixAppend, TailAppend
from embodied_kv.model.backbone import Backbone, BackboneModel, arange_positions
from embodied_kv.model.expert import Expert, Modulation
from embodied_kv.model.vision import VisionTower


class Pi05(BackboneModel):
    """The model. Its methods run in inference_mode, except during training."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.vision = VisionTower(config)
        self.backbone = Backbone(config.backbone)
        self.expert = Expert(
            config.expert, config.backbone, config.padded_action_dim, config.state_width
        )

    def embed_images(self, images: Tensor) -> Tensor:
        """Return [N, tokens, width] of images [N, 3, S, S] in [-1, 1]; not scaled."""
        return self.vision(images)

    def embed_tokens(self, ids: Tensor) -> Tensor:
        """Return [..., T, width] of ids [..., T], scaled by sqrt(width)."""
        return self.backbone.embed_tokens(ids)

    def prefill(self, embeddings: Tensor, cache: KvView) -> None:
        """Write packed prefix embeddings [B, N, width] through `cache`; equation 1 of OxyGen."""
        positions = arange_positions(*embeddings.shape[:2], embeddings.device)
        self.backbone.fill(embeddings, positions, cache)

    def append_state(self, states: Tensor, cache: PrefixAppend) -> None:
        """Write the state tokens of states float32 [B, state_width] behind the prefixes."""
        rope = self.expert.rope(cache.positions, self.dtype)
        self.expert.append_state(states.to(self.dtype), cache, rope)

    def suffix_rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rotary tables of action slots at logical positions [B, chunk].

        The positions of a slot start at its number of valid prefix tokens.
        """
        return self.expert.rope(positions, self.dtype)

    def velocity(
        self, x: Tensor, modulation: Modulation, cache: KvView, rope: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Return v(x_t, t) of flow matching for x_t float32 [B, chunk, padded_action_dim]."""
        hidden = self.expert.embed(x.to(self.dtype), modulation)
        return self.expert.action_out(self.expert(hidden, modulation, cache, rope)).float()

    def extend(self, ids: Tensor, cache: TailAppend) -> Tensor:
        """Append ids [B, T] to the decode streams of `cache`.

        Returns the logits float32 [B, vocab] after the last id of each slot.
        """
        hidden = self.backbone(self.embed_tokens(ids), cache.positions, cache)
        return self.backbone.logits(cache.newest(hidden))
