"""Sizes of the memory's planner: that which the package ships, and one that also plans missions.

Does not know torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from embodied_kv.config import BackboneConfig


@dataclass(frozen=True)
class PlannerConfig:
    """A causal language model over text alone, that plans with memory in view.

    max_tokens: of a prompt with its memory, and the answer.
    """

    name: str
    backbone: BackboneConfig
    max_tokens: int
    dtype: str = 'float32'


# Of a head's angles more than half turn by less than 2 rad over all positions: what is looked for
# by its name is found wherever it stands.
PLANNER_TABLETOP = PlannerConfig(
    'planner_tabletop',
    BackboneConfig(
        width=128,
        layers=6,
        heads=4,
        kv_heads=2,
        head_dim=64,
        mlp=256,
        vocab_size=512,
        rope_theta=10_000_000.0,
    ),
    max_tokens=1280,
)

# The same keys by position; more words, and two more layers to put a mission together.
PLANNER_MISSIONS = replace(
    PLANNER_TABLETOP,
    name='planner_missions',
    backbone=replace(PLANNER_TABLETOP.backbone, layers=8, vocab_size=640),
)
