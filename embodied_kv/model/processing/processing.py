"""What stands between policy units and the network, as one project does it: all of it, as data.

Knows how the parts follow one another. Does not know which project needs which: checkpoints say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied_kv.model.processing import aloha
from embodied_kv.model.processing.images import Resize
from embodied_kv.model.processing.normalizer import Normalizer
from embodied_kv.model.processing.prompt import PromptStyle


@dataclass(frozen=True)
class Conversion:
    """Between the robot's joints and those that a checkpoint was trained with, both ways."""

    name: str
    state: Callable[[ArrayLike], NDArray]
    actions: Callable[[ArrayLike], NDArray]
    decode_actions: Callable[[ArrayLike], NDArray]


AS_IT_IS = Conversion('none', np.asarray, np.asarray, np.asarray)
CONVERSIONS = {
    'none': AS_IT_IS,
    'aloha': Conversion('aloha', aloha.decode_state, aloha.encode_actions, aloha.decode_actions),
}


@dataclass(frozen=True, eq=False)
class Processing:
    """Numpy in and out, in the dtype that the project computes with; images leave as tensors."""

    normalizer: Normalizer
    prompt: PromptStyle
    resize: Resize
    conversion: Conversion = AS_IT_IS

    def state(self, x: ArrayLike) -> NDArray[np.floating]:
        """Policy units [state_dim] -> what the prompt bins."""
        return self.normalizer.state(self.conversion.state(x))

    def actions(self, normalised: ArrayLike, state: ArrayLike) -> NDArray[np.floating]:
        """The network's [chunk, padded] -> absolute actions [chunk, action_dim] in policy units.

        state: [state_dim], as observed with the images that the chunk answers.
        """
        chunk = self.normalizer.actions(normalised, self.conversion.state(state))
        return self.conversion.actions(chunk)

    def targets(self, actions: ArrayLike, state: ArrayLike) -> NDArray[np.floating]:
        """The inverse of `actions`, without padding: float [chunk, action_dim]."""
        state = self.conversion.state(state)
        return self.normalizer.targets(self.conversion.decode_actions(actions), state)
