"""How our own policies process: the convention that the bundled weights were trained with.

Quantiles in float32, near-constant joints held, bins clamped at 0, images resized as uint8.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied_kv.config import ModelConfig
from embodied_kv.model.processing import scaling
from embodied_kv.model.processing.images import OWN_RESIZE
from embodied_kv.model.processing.normalizer import Normalizer
from embodied_kv.model.processing.processing import Processing
from embodied_kv.model.processing.prompt import OWN_PROMPT


def processing(normalizer: Normalizer) -> Processing:
    """All of it, around a policy's own scales."""
    return Processing(normalizer, OWN_PROMPT, OWN_RESIZE)


def quantiles(
    state: tuple[ArrayLike, ArrayLike],
    action: tuple[ArrayLike, ArrayLike],
    relative: NDArray[np.bool_],
) -> Normalizer:
    """From (q01, q99) of the state [state_dim] and of the action [action_dim] or with steps."""
    parts = (dict(zip(('q01', 'q99'), ends, strict=True)) for ends in (state, action))
    return Normalizer(*(scaling.own('quantiles', part) for part in parts), relative)


def identity(config: ModelConfig, lower: ArrayLike = -1.0, upper: ArrayLike = 1.0) -> Normalizer:
    """[-1, 1] spans the joint limits: for weights that come without statistics.

    lower, upper: scalars, or one value per joint, as many as max(state_dim, action_dim).
    """
    joints = max(config.state_dim, config.action_dim)
    low, high = (np.broadcast_to(np.asarray(x, np.float32), joints) for x in (lower, upper))
    state, action = ((low[:n], high[:n]) for n in (config.state_dim, config.action_dim))
    return quantiles(state, action, np.zeros(config.action_dim, bool))
