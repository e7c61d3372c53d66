"""Memory rows of a batch: earlier frames of each sample's episode, as an engine would keep them.

This module knows which frames are kept, not why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

KEPT, WHOLE = 0.2, 0.6  # least share of the tokens of a memory row; share of whole memory rows


class RememberedFrames:
    """Makes the memory fields of a `Batch`.

    Args:
        images: uint8 [F, views, S, S, 3], of all frames.
        length: Maximum number of tokens of a prompt.
        views: Tokens of all views.
    """

    def __init__(self, images: np.ndarray, length: int, views: int) -> None:
        self._images, self._length, self._views = images, length, views

    def columns(
        self,
        kept: Sequence[Sequence[int]],
        prompt: Callable[[int, int], Sequence[int]],
        rng: np.random.Generator,
    ) -> dict[str, Tensor]:
        """Return the memory fields of a batch; {} if no sample has an earlier frame.

        Some memory rows are read in part, because an engine may keep a share of their tokens.

        Args:
            kept: The earlier frames of each sample, the newest first.
            prompt: Returns the prompt of an earlier frame of a sample: (sample, frame) -> at most
                `length` tokens.
            rng: Draws what is read.
        """
        size, rows = len(kept), max(map(len, kept), default=0)
        if not rows:
            return {}
        images = np.zeros((size, rows, *self._images.shape[1:]), np.uint8)
        prompts = np.zeros((size, rows, self._length), np.int64)
        lengths = np.zeros((size, rows), np.int64)
        tokens = np.arange(self._views + self._length)
        shares = rng.uniform(KEPT, 1.0, (size, rows, 1))
        shares[rng.random((size, rows)) < WHOLE] = 1.0
        seen = rng.random((size, rows, len(tokens))) < shares
        for b, frames in enumerate(kept):
            for age, frame in enumerate(frames):
                ids = prompt(b, frame)
                images[b, age] = self._images[frame]
                prompts[b, age, : len(ids)], lengths[b, age] = ids, len(ids)
        seen &= (lengths > 0)[..., None] & (tokens < self._views + lengths[..., None])
        return {
            'memory_images': torch.from_numpy(images),
            'memory_prompt': torch.from_numpy(prompts),
            'memory_length': torch.from_numpy(lengths),
            'memory_seen': torch.from_numpy(seen),
        }
