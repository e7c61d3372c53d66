"""pi0.5, pi0 and SmolVLA: vision tower, backbone, action expert and head around a KV cache view.

Black et al., pi0 (2024) and pi0.5 (2025), and Shukor et al., SmolVLA (2025), in the conventions of
the public references. The prefix is one bidirectional block of packed valid tokens: absent views
and padding occupy no cache, and positions are 0 .. n-1. Actions and language both read the prefix.
pi0 and SmolVLA add a state token behind it, computed by the expert (pi0) or backbone (SmolVLA).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from embodied_kv.config import ModelConfig
from embodied_kv.kv.views import KvView, PrefixAppend, PrefixWrite, TailAppend
from embodied_kv.model.backbone import Backbone, BackboneModel, arange_positions
from embodied_kv.model.expert import Expert, Modulation
from embodied_kv.model.layers import fill
from embodied_kv.model.vision import VisionTower


class ProjectingWrite:
    """A view that writes what a backbone layer stores, and the expert's projections of it.

    SmolVLA's cross attention reads the projections. They are computed once for a row.
    """

    def __init__(self, cache: PrefixWrite, expert: Expert) -> None:
        self._cache, self._expert = cache, expert

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self._project(layer, k, v)
        return self._cache.attend(layer, q, k, v)

    def store(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> None:
        self._project(layer, k, v)
        self._cache.store(layer, q, k, v)

    def _project(self, layer: int, k: Tensor, v: Tensor) -> None:
        if (row := self._expert.crosses.get(layer)) is not None:
            self._cache.write(row, *self._expert.cross_kv(layer, k, v))


class Pi05(BackboneModel):
    """The model. Its methods run in inference_mode, except during training."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.vision = VisionTower(config)
        self.backbone = Backbone(config.backbone)
        self.expert = Expert(config)
        if config.state_width:
            readers = dict(expert=config.expert.width, backbone=config.backbone.width)
            self.state_in = nn.Linear(config.state_width, readers[config.state_reader])

    def embed_images(self, images: Tensor) -> Tensor:
        """Return [N, tokens, width] of images [N, 3, S, S] in [-1, 1]."""
        return self.vision(images)

    def embed_tokens(self, ids: Tensor) -> Tensor:
        """Return [..., T, width] of ids [..., T], as `Backbone.embed_tokens`."""
        return self.backbone.embed_tokens(ids)

    def prefill(self, embeddings: Tensor, cache: PrefixWrite) -> None:
        """Write packed prefix embeddings [B, N, width] through `cache`; equation 1 of OxyGen."""
        positions = arange_positions(embeddings.shape[0], embeddings.shape[1], embeddings.device)
        self.backbone.fill(embeddings, positions, self._projecting(cache))

    def append_state(self, states: Tensor, cache: PrefixAppend) -> None:
        """Write the state tokens of states float32 [B, state_width] behind the prefixes.

        The token sees the prefix and itself. It does not see the actions, so its K and V are the
        same in every denoise step, and belong to the row.
        """
        part = self.expert if self.config.state_reader == 'expert' else self.backbone
        hidden = self.state_in(states.to(self.dtype))[:, None]
        rope = self.backbone.rope(cache.positions, self.dtype)
        fill(part.layers, hidden, self._projecting(cache), rope)

    def frame_embeddings(self) -> Tensor:
        """Return the tokens around pictures, which are not scaled, [frame tokens, width]."""
        ids = torch.tensor([*self.config.frame, *self.config.frame[:1]], device=self.device)
        return self.backbone.embed(ids)

    def suffix_rope(self, positions: Tensor) -> tuple[Tensor, ...]:
        """Return the rotary tables of action slots at logical positions [B, chunk].

        The positions of a slot start at its number of valid prefix tokens.
        """
        return self.expert.suffix_rope(positions, self.dtype)

    def _projecting(self, cache: PrefixWrite) -> KvView:
        """Return a view that writes the expert's projections of K and V too, if it has any."""
        return ProjectingWrite(cache, self.expert) if self.expert.crosses else cache

    def velocity(
        self, x: Tensor, modulation: Modulation, cache: KvView, rope: tuple[Tensor, ...]
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
