"""What a node knows of an engine that lives elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from embodied_kv.config import ModelConfig


@dataclass(frozen=True)
class RemoteHost:
    """The dimensions of its model."""

    model: ModelConfig
