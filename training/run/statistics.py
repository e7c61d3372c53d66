"""The normalisation of a policy, measured from its data: which values become -1 and 1.

pi0.5's convention: the 1st and 99th percentile of each number of state and action (openpi,
`normalize.py`). Actions that are offsets from the state have percentiles of each step of a chunk.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from embodied_kv.config import ModelConfig
from embodied_kv.model.processing.normalizer import NEAR_CONSTANT, Normalizer
from training.run.frames import Frames

SPAN = 1.0, 99.0  # percentiles
SAMPLES = 65536  # chunks that are measured, at most


def measure(frames: Frames, config: ModelConfig, relative: NDArray[np.bool_]) -> Normalizer:
    """Measure the normaliser of frames.

    relative: bool [A], which actions are offsets from the state of the same index.
    """
    at = np.arange(0, len(frames), max(1, math.ceil(len(frames) / SAMPLES)))
    chunks = frames.chunks(at, config.chunk_size).astype(np.float64)  # [n, chunk, A]
    dims = np.flatnonzero(relative)
    chunks[..., dims] -= frames.state[at][:, None, dims]
    low, high = (end.copy() for end in _ends(chunks))
    of_all = _ends(frames.action)
    low[:, ~relative], high[:, ~relative] = (end[~relative] for end in of_all)
    return Normalizer.from_quantiles(_ends(frames.state), (low, high), relative)


def _ends(values: NDArray) -> tuple[NDArray, NDArray]:
    """Return the percentiles of [n, ...]; extremes for numbers that are mostly constant.

    A gripper that closes once in a hundred frames would otherwise never close.
    """
    low, high = np.percentile(values, SPAN, axis=0)
    seldom = high - low < NEAR_CONSTANT
    return np.where(seldom, values.min(0), low), np.where(seldom, values.max(0), high)
