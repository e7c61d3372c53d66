"""A model with what belongs to it: tokenizer and normalisation statistics, from one checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from embodied_kv.config import ModelConfig
from embodied_kv.model.checkpoint import ASSETS, load_policy_parts
from embodied_kv.model.pi05 import Pi05
from embodied_kv.model.preprocess import Normalizer, prompt_tokens, to_model_images
from embodied_kv.model.random import init_random
from embodied_kv.model.tokenizer import Tokenizer

TWITCH = 0.05  # rad or m; how far random weights move a joint


@dataclass(frozen=True, eq=False)
class Policy:
    """Everything between an Observation and the network, and back."""

    config: ModelConfig
    model: Pi05
    tokenizer: Tokenizer
    normalizer: Normalizer

    @classmethod
    def random(cls, config: ModelConfig, seed: int = 0, device: str = 'cpu') -> Policy:
        """Seeded random weights, for latency: the robot twitches around where it is."""
        model = Pi05.empty(config, device)
        init_random(model, seed)
        twitch = replace(
            Normalizer.identity(config),
            action_q01=np.full(config.action_dim, -TWITCH, np.float32),
            action_q99=np.full(config.action_dim, TWITCH, np.float32),
            delta=np.arange(config.action_dim) < config.state_dim,
        )
        return cls(config, model, Tokenizer.bytes(), twitch)

    @classmethod
    def load(cls, path: str, config: ModelConfig, device: str = 'cpu') -> Policy:
        """From a checkpoint file or folder of exactly these dimensions. Raises CheckpointError."""
        model = Pi05.empty(config, device)
        tokenizer, normalizer = load_policy_parts(path, model, config)
        return cls(config, model, tokenizer, normalizer)

    def prompt_ids(self, instruction: str, state: np.ndarray) -> list[int]:
        """Token ids of the prompt for a state in SI units; a long instruction is cut to fit."""
        ids, _ = prompt_tokens(
            self.tokenizer, instruction, self.normalizer.state(state), self.config.max_text
        )
        return ids

    def images(self, images: Sequence[np.ndarray | None]) -> Tensor:
        """Present views as the tower takes them: [present, 3, size, size] in [-1, 1]."""
        pixels = to_model_images(images, self.config.vision.image_size)
        return pixels.to(self.model.device, self.model.dtype)


def bundled(preset: str) -> Path:
    """The checkpoint that comes with the package. Raises ValueError where there is none."""
    path = ASSETS / preset
    if not path.exists():
        raise ValueError(
            f"preset '{preset}' has no checkpoint of its own: name one in `checkpoint`, or "
            "'random'"
        )
    return path
