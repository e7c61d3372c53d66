"""Sizes of the memory's planner that the package ships.

Does not know torch.
"""

from __future__ import annotations

from dataclasses import dataclass

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
