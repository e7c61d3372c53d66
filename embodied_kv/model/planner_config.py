"""Sizes of the memory's planner. Knows numbers; does not know torch."""

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
