"""Make batches of frames: observations, tasks, actions, and positions if the data has them.

This module knows tokens and normalised numbers. The content of a batch is a function of the
frames, the seed and the batch's number.
"""

from __future__ import annotations

import numpy as np
import torch

from embodied_kv.config import ModelConfig
from embodied_kv.model.processing.normalizer import Normalizer
from embodied_kv.model.processing.prompt import OWN_PROMPT, STATE_BINS
from embodied_kv.model.tokenizer import Tokenizer
from training.common.batch import Batch
from training.common.segments import Segments
from training.run.frames import Frames
from training.run.words import SUBTASK, goal_of


class Sampler:
    """Batches of frames by number, the same for the same seed.

    rtc: largest length of the action prefix of a chunk; small lengths are drawn more often.
    """

    def __init__(
        self,
        frames: Frames,
        config: ModelConfig,
        tokenizer: Tokenizer,
        normalizer: Normalizer,
        *,
        batch: int,
        seed: int,
        rtc: int = 0,
    ) -> None:
        if not 0 <= rtc < config.chunk_size:
            raise ValueError(f'rtc {rtc} is not in 0..{config.chunk_size - 1}: some must be left')
        self._frames, self._config, self._normalizer = frames, config, normalizer
        self._tokenizer, self._batch, self._seed, self._rtc = tokenizer, batch, seed, rtc
        self._prompt = longest_prompt(frames, tokenizer, config.state_dim)
        self._packed = longest_segments(frames, tokenizer)
        goals = [goal_of(task, frames.objects) for task in frames.tasks]
        self._goals = np.array([-1 if goal is None else goal for goal in goals])

    def batch(self, number: int, ground: bool = False) -> Batch:
        """Return batch `number`. ground: ask for positions only, not for the subtask."""
        rng = np.random.default_rng((self._seed, number))
        frames, config, size = self._frames, self._config, self._batch
        at = rng.integers(len(frames), size=size)
        state, chunks = frames.state[at], frames.chunks(at, config.chunk_size)
        actions = np.zeros((size, config.chunk_size, config.padded_action_dim), np.float32)
        actions[..., : config.action_dim] = self._normalizer.targets(chunks, state)
        known = np.minimum(frames.left[at], config.chunk_size)
        drawn = ((self._rtc + 1) * rng.random(size) ** 2).astype(np.int64)
        prompts = np.full((size, self._prompt), self._tokenizer.pad)
        lengths = np.empty(size, int)
        segments = Segments(self._tokenizer, size, self._packed, len(frames.objects))
        for b, (frame, numbers) in enumerate(zip(at, self._normalizer.state(state), strict=True)):
            words = frames.tasks[frames.task[frame]]
            ids = OWN_PROMPT.tokens(self._tokenizer, words, numbers, self._prompt)[0]
            prompts[b, : len(ids)], lengths[b] = ids, len(ids)
            for n in np.flatnonzero(np.isfinite(frames.positions[frame]).all(-1)):
                segments.name(b, frames.objects[n], int(n))
            if not ground and frames.subtask[frame] >= 0:
                segments.say(b, SUBTASK, frames.subtasks[frames.subtask[frame]])
        there = torch.from_numpy(np.isfinite(frames.pixels[at]).any((2, 3)))  # in some view
        kinds = torch.arange(len(frames.objects)).expand(size, -1)
        return Batch(
            images=torch.from_numpy(frames.images[at]),
            prompt=torch.from_numpy(prompts),
            prompt_length=torch.from_numpy(lengths),
            actions=torch.from_numpy(actions),
            delay=torch.from_numpy(np.minimum(drawn, known - 1)),
            known=torch.from_numpy(known),
            **segments.tensors(),
            pixels=torch.from_numpy(frames.pixels[at]),
            colour=kinds.where(there, -1),  # the classes of a patch are the names
            shape=torch.zeros_like(kinds).where(there, -1),
            goal=torch.from_numpy(self._goal(at)),
            where=torch.from_numpy(frames.positions[at]),
        )

    def _goal(self, at: np.ndarray) -> np.ndarray:
        """Return the position of the object that each task is about, float32 [B, 3], or NaN."""
        goals = self._goals[self._frames.task[at]]
        found = np.full((len(at), 3), np.nan, np.float32)
        named = goals >= 0
        found[named] = self._frames.positions[at[named], goals[named]]
        return found


def longest_prompt(frames: Frames, tokenizer: Tokenizer, dims: int) -> int:
    """Return the tokens of the longest prompt that a task can have.

    It has the state whose numbers take the most tokens.
    """
    costs = [len(tokenizer.encode(f' {number}')) for number in range(STATE_BINS)]
    dearest = (int(np.argmax(costs)) + 0.5) * 2 / STATE_BINS - 1
    state, limit = np.full(dims, dearest), 2**16
    return max(len(OWN_PROMPT.tokens(tokenizer, task, state, limit)[0]) for task in frames.tasks)


def longest_segments(frames: Frames, tokenizer: Tokenizer) -> int:
    """Return the largest number of tokens that questions behind a prefix take, at least one."""
    names = sum(len(tokenizer.encode(f' {name}')) for name in frames.objects)
    said = max((len(tokenizer.encode(f' {text}')) for text in frames.subtasks), default=0)
    return max(1, names + (len(tokenizer.encode(SUBTASK)) + said if said else 0))
