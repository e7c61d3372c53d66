"""Conversion between policy units and the network, by the conventions of one project."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied_kv.model.processing import aloha
from embodied_kv.model.processing.images import OWN_RESIZE, Resize
from embodied_kv.model.processing.normalizer import Normalizer
from embodied_kv.model.processing.prompt import OWN_PROMPT, PromptStyle


@dataclass(frozen=True)
class Conversion:
    """Conversion between the joints of the robot and the joints of the checkpoint's data."""

    name: str
    state: Callable[[ArrayLike], NDArray]
    actions: Callable[[ArrayLike], NDArray]
    decode_actions: Callable[[ArrayLike], NDArray]


UNCHANGED = Conversion('none', np.asarray, np.asarray, np.asarray)
CONVERSIONS = {
    'none': UNCHANGED,
    'aloha': Conversion('aloha', aloha.decode_state, aloha.encode_actions, aloha.decode_actions),
}


@dataclass(frozen=True, eq=False)
class Processing:
    """The processing of a checkpoint, in numpy and in the dtype of its project.

    The defaults are the conventions of this project's own policies.
    """

    normalizer: Normalizer
    prompt: PromptStyle = OWN_PROMPT
    resize: Resize = OWN_RESIZE
    conversion: Conversion = UNCHANGED

    def state(self, x: ArrayLike) -> NDArray[np.floating]:
        """Return the normalised state [state_dim], which the prompt bins."""
        return self.normalizer.state(self.conversion.state(x))

    def actions(self, normalised: ArrayLike, state: ArrayLike) -> NDArray[np.floating]:
        """Return absolute actions [chunk, action_dim] in policy units of [chunk, padded].

        state: [state_dim], as observed with the images of the chunk.
        """
        chunk = self.normalizer.actions(normalised, self.conversion.state(state))
        return self.conversion.actions(chunk)

    def targets(self, actions: ArrayLike, state: ArrayLike) -> NDArray[np.floating]:
        """Return the inverse of `actions` without padding: float [chunk, action_dim]."""
        state = self.conversion.state(state)
        return self.normalizer.targets(self.conversion.decode_actions(actions), state)
