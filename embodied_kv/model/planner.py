"""The memory's planner: the backbone alone, causal, over text.

Full attention in every layer, so that the keys of a piece of text can be moved to another
position (`memory.rotate`). A recurrent planner folds all that came before into one state, which
cannot be moved: `benchmarks.hybrid` measures capsules, not memory.
"""

from __future__ import annotations

from torch import Tensor

from embodied_kv.kv.views import KvView
from embodied_kv.model.backbone import Backbone, BackboneModel
from embodied_kv.model.planner_config import PlannerConfig


class Planner(BackboneModel):
    """Token ids through a cache view to logits; whoever calls steps it layer by layer, or at once.

    Which keys a token sees is the view's matter.
    """

    def __init__(self, config: PlannerConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone = Backbone(config.backbone)

    def embed(self, ids: Tensor) -> Tensor:
        """ids [B, T] -> [B, T, width]."""
        return self.backbone.embed_tokens(ids)

    def rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rotary tables of logical positions [B, T], for every layer."""
        return self.backbone.rope(positions, self.dtype)

    def layer(self, i: int, hidden: Tensor, cache: KvView, rope: tuple[Tensor, Tensor]) -> Tensor:
        """hidden [B, T, width] -> the same, after layer i."""
        return self.backbone.layer(i, hidden, cache, rope)

    def keys(self, i: int, hidden: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """K that layer i would store for hidden [B, T, width]: [B, T, kv_heads, head_dim]."""
        layer = self.backbone.layers[i]
        return layer.project(layer.attn_norm(hidden), rope)[1]

    def forward(self, ids: Tensor, positions: Tensor, cache: KvView) -> Tensor:
        """ids, positions [B, T] -> hidden states after the final norm, [B, T, width]."""
        return self.backbone(self.embed(ids), positions, cache)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., width] after the final norm -> float32 [..., vocab]."""
        return self.backbone.logits(hidden)
