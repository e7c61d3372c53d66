"""A model with what belongs to it: its tokenizer, and what stands between units and the network.

Knows the way from an Observation to the network and back. Does not know files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from embodied_kv.config import ModelConfig
from embodied_kv.model.pi05 import Pi05
from embodied_kv.model.processing.normalizer import Normalizer
from embodied_kv.model.processing.processing import Processing
from embodied_kv.model.random import init_random
from embodied_kv.model.tokenizer import Tokenizer

TWITCH = 0.05  # rad or m; how far random weights move a joint


@dataclass(frozen=True, eq=False)
class Policy:
    """Everything between an Observation and the network, and back.

    All states and actions are in policy units, those of the checkpoint's statistics. most_given:
    first actions of a chunk that it was trained to be given, at most. says: the prompts that it
    learnt to answer; None where nobody says it.
    """

    config: ModelConfig
    model: Pi05
    tokenizer: Tokenizer
    processing: Processing
    most_given: int = 0
    says: tuple[str, ...] | None = None

    @property
    def is_mute(self) -> bool:
        """Whether it learnt actions alone: whatever it would say means nothing."""
        return self.says == ()

    @classmethod
    def random(cls, config: ModelConfig, seed: int = 0, device: str = 'cpu') -> Policy:
        """Seeded random weights, for latency: the robot twitches around where it is."""
        model = Pi05.empty(config, device)
        init_random(model, seed)
        joints = np.ones(config.state_dim), np.full(config.action_dim, TWITCH)
        state, action = ((-ends, ends) for ends in joints)
        twitch = Normalizer.from_quantiles(
            state, action, np.arange(config.action_dim) < config.state_dim
        )
        given = config.chunk_size - 1  # random weights were never trained for anything less
        return cls(config, model, Tokenizer.bytes(), Processing(twitch), given)

    def prompt_ids(self, instruction: str, state: np.ndarray) -> list[int]:
        """Token ids of the prompt for a state [state_dim]; a long instruction is cut to fit."""
        return self._prompt(instruction, self.processing.state(state))[0]

    def question_ids(self, text: str) -> list[int]:
        """Token ids of what is to be answered. Raises ValueError where nothing can be."""
        if not text.strip():
            raise ValueError('the question is empty: say what the stream should answer')
        if self.is_mute:
            raise ValueError(
                'this policy is mute: it was trained on data without words; take `language` out '
                'of its contract, or train it on data that says what is done'
            )
        return self.tokenizer.encode(text)

    def cuts(self, instruction: str) -> bool:
        """Whether some prompt, that with the widest state, has to cut the instruction."""
        return self._prompt(instruction, np.ones(self.config.state_dim, np.float32))[1]

    def fitted(self, image: np.ndarray) -> np.ndarray:
        """uint8 [H, W, 3] as `pixels` has it; of a picture that is fitted, itself.

        So whoever has the time resizes, and `pixels` copies: the bits are the same.
        """
        return self.processing.resize.pad(image, self.config.vision.image_size)

    def is_fitted(self, image: np.ndarray) -> bool:
        """Whether it may be what `fitted` made."""
        return self.processing.resize.is_padded(image, self.config.vision.image_size)

    def pixels(self, images: Sequence[np.ndarray | None]) -> np.ndarray:
        """Present views, resized: [present, size, size, 3] of the dtype of `processing.resize`."""
        return self.processing.resize.resized(images, self.config.vision.image_size)

    def normalised(self, pixels: Tensor) -> Tensor:
        """Such pixels as the tower takes them: [present, 3, size, size] in [-1, 1]."""
        return self.processing.resize.normalised(pixels).to(self.model.dtype)

    def images(self, images: Sequence[np.ndarray | None]) -> Tensor:
        """Present views as the tower takes them: [present, 3, size, size] in [-1, 1]."""
        return self.normalised(torch.from_numpy(self.pixels(images)).to(self.model.device))

    def actions(self, normalised: np.ndarray, state: np.ndarray) -> np.ndarray:
        """The network's [chunk, padded] -> absolute actions, float32 [chunk, action_dim].

        state: [state_dim], as observed with the images that the chunk answers.
        """
        return self.processing.actions(normalised, state).astype(np.float32)

    def targets(self, actions: np.ndarray, state: np.ndarray) -> np.ndarray:
        """The inverse of `actions`: float32 [chunk, padded_action_dim], what is padded 0."""
        padded = np.zeros((len(actions), self.config.padded_action_dim), np.float32)
        padded[:, : self.config.action_dim] = self.processing.targets(actions, state)
        return padded

    def rest(self) -> np.ndarray:
        """A state in the middle of the data, float32 [state_dim]: for warming up."""
        scale = self.processing.normalizer.state_scale
        return scale.unnormalise(np.zeros(self.config.state_dim)).astype(np.float32)

    def _prompt(self, instruction: str, normalised: np.ndarray) -> tuple[list[int], bool]:
        style = self.processing.prompt
        return style.tokens(self.tokenizer, instruction, normalised, self.config.max_text)
