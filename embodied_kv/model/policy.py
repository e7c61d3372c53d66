"""A policy: the model with its tokenizer and its processing of observations and actions."""

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
from embodied_kv.model.processing.prompt import own_prompt
from embodied_kv.model.random import init_random
from embodied_kv.model.tokenizer import Tokenizer

MEMORY_ROWS = 8  # most memory rows of any robot
RANDOM_REACH = 0.05  # rad or m; largest offset of a joint with random weights


@dataclass(frozen=True, eq=False)
class Policy:
    """The conversion of an Observation to the network's input, and of its output to actions.

    All states and actions are in policy units, those of the checkpoint's statistics.
    max_action_prefix, max_memory_rows: longest action prefix and most memory rows that the policy
    was trained with. says: prompts that it was trained to answer; None if unknown. source:
    'owner/name@commit' of the Hugging Face hub; '' if it is from elsewhere. sums_times: see
    `flow_times`. is_random: whether the weights are untrained; the limits are then the largest.
    """

    config: ModelConfig
    model: Pi05
    tokenizer: Tokenizer
    processing: Processing
    max_action_prefix: int = 0
    says: tuple[str, ...] | None = None
    source: str = ''
    sums_times: bool = False
    max_memory_rows: int = 0
    is_random: bool = False

    @property
    def is_mute(self) -> bool:
        """Whether the policy was trained on actions alone, so that its text is meaningless."""
        return self.says == ()

    @classmethod
    def random(cls, config: ModelConfig, seed: int = 0, device: str = 'cpu') -> Policy:
        """Return a policy with seeded random weights, which keeps the robot near its state."""
        model = Pi05.empty(config, device)
        init_random(model, seed)
        joints = np.ones(config.state_dim), np.full(config.action_dim, RANDOM_REACH)
        state, action = ((-ends, ends) for ends in joints)
        normalizer = Normalizer.from_quantiles(
            state, action, np.arange(config.action_dim) < config.state_dim
        )
        processing = Processing(normalizer, own_prompt(not config.state_width))
        return cls(
            config,
            model,
            Tokenizer.bytes(),
            processing,
            max_action_prefix=config.chunk_size - 1,  # random weights have no trained limits
            max_memory_rows=MEMORY_ROWS,
            is_random=True,
        )

    def prompt_ids(self, instruction: str, state: np.ndarray) -> list[int]:
        """Return the prompt ids for a state [state_dim]; a long instruction is truncated."""
        return self._prompt(instruction, self.processing.state(state))[0]

    def state_token(self, normalised: np.ndarray) -> np.ndarray:
        """Return the input of the state token, float32 [state_width], for [state_dim]."""
        known = np.append(normalised, self.processing.prompt.padding)
        return np.pad(known, (0, self.config.state_width - len(known))).astype(np.float32)

    def question_ids(self, text: str) -> list[int]:
        """Return the ids of a question. Raises ValueError if the policy cannot answer it."""
        if not text.strip():
            raise ValueError('the question is empty; send what the stream should answer')
        if self.is_mute:
            raise ValueError(
                'this policy is mute: it was trained on data without language; remove `language` '
                'from its contract, or train it on data with language'
            )
        return self.tokenizer.encode(text)

    def truncates(self, instruction: str) -> bool:
        """Return whether the prompt with the longest state truncates the instruction."""
        return self._prompt(instruction, np.ones(self.config.state_dim, np.float32))[1]

    def fitted(self, image: np.ndarray) -> np.ndarray:
        """Return uint8 [H, W, 3] resized as by `pixels`, so that another thread can resize.

        The bits are the same. A fitted picture is returned unchanged.
        """
        return self.processing.resize.pad(image, self.config.vision.image_size)

    def is_fitted(self, image: np.ndarray) -> bool:
        """Return whether the picture may be a result of `fitted`."""
        return self.processing.resize.is_padded(image, self.config.vision.image_size)

    def pixels(self, images: Sequence[np.ndarray | None]) -> np.ndarray:
        """Return the present views, [present, size, size, 3] of the dtype of the resize."""
        return self.processing.resize.resized(images, self.config.vision.image_size)

    def normalised(self, pixels: Tensor) -> Tensor:
        """Return the tower's input of such pixels: [present, 3, size, size] in [-1, 1]."""
        return self.processing.resize.normalised(pixels).to(self.model.dtype)

    def images(self, images: Sequence[np.ndarray | None]) -> Tensor:
        """Return the tower's input of the present views: [present, 3, size, size] in [-1, 1]."""
        return self.normalised(torch.from_numpy(self.pixels(images)).to(self.model.device))

    def actions(self, normalised: np.ndarray, state: np.ndarray) -> np.ndarray:
        """Return absolute actions float32 [chunk, action_dim] of the network's [chunk, padded].

        state: [state_dim], as observed with the images of the chunk.
        """
        return self.processing.actions(normalised, state).astype(np.float32)

    def targets(self, actions: np.ndarray, state: np.ndarray) -> np.ndarray:
        """Return the inverse of `actions`: float32 [chunk, padded_action_dim], padded with 0."""
        padded = np.zeros((len(actions), self.config.padded_action_dim), np.float32)
        padded[:, : self.config.action_dim] = self.processing.targets(actions, state)
        return padded

    def rest(self) -> np.ndarray:
        """Return a state in the middle of the data, float32 [state_dim], for the warm-up."""
        scale = self.processing.normalizer.state_scale
        return scale.unnormalise(np.zeros(self.config.state_dim)).astype(np.float32)

    def _prompt(self, instruction: str, normalised: np.ndarray) -> tuple[list[int], bool]:
        style = self.processing.prompt
        return style.tokens(self.tokenizer, instruction, normalised, self.config.max_text)
