"""The planner of the memory: the language backbone alone, causal, over text.

Every layer has full attention, so that the keys of a text can be moved to another position
(`memory.rotate`). A recurrent planner folds all previous tokens into one state, which cannot be
moved; `benchmarks.hybrid` measures capsules with it, not memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from embodied_kv.config import BackboneConfig
from embodied_kv.kv.views import KvView
from embodied_kv.model.backbone import Backbone, BackboneModel


@dataclass(frozen=True)
class PlannerConfig:
    """Dimensions of a planner. max_tokens: of a prompt with its memory, and the answer."""

    name: str
    backbone: BackboneConfig
    max_tokens: int
    dtype: str = 'float32'


# More than half of a head's angles turn by less than 2 rad over all positions, so that attention
# finds a name at any position.
PLANNER_MISSIONS = PlannerConfig(
    'planner_missions',
    BackboneConfig(
        width=128,
        layers=8,
        heads=4,
        kv_heads=2,
        head_dim=64,
        mlp=256,
        vocab_size=640,
        rope_theta=10_000_000.0,
    ),
    max_tokens=1280,
)


class Planner(BackboneModel):
    """Token ids through a cache view to logits, layer by layer or at once.

    The view determines which keys a token attends to.
    """

    def __init__(self, config: PlannerConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone = Backbone(config.backbone)

    def embed(self, ids: Tensor) -> Tensor:
        """Return [B, T, width] of ids [B, T]."""
        return self.backbone.embed_tokens(ids)

    def rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rotary tables of logical positions [B, T], for every layer."""
        return self.backbone.rope(positions, self.dtype)

    def layer(self, i: int, hidden: Tensor, cache: KvView, rope: tuple[Tensor, Tensor]) -> Tensor:
        """Return hidden [B, T, width] after layer i."""
        return self.backbone.layer(i, hidden, cache, rope)

    def forward(self, ids: Tensor, positions: Tensor, cache: KvView) -> Tensor:
        """Return hidden states [B, T, width] after the final norm of ids, positions [B, T]."""
        return self.backbone(self.embed(ids), positions, cache)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 [..., vocab] of hidden [..., width] after the final norm."""
        return self.backbone.logits(hidden)
