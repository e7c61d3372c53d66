"""The state as the network reads it, and its chunk as actions: the two scales of a checkpoint.

Knows which actions are offsets from the observed state. Does not know a project: each gives its
own `Scaling`. Units are the policy's, those of its statistics.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embodied_kv.model.processing.scaling import Scaling


@dataclass(frozen=True, eq=False)
class Normalizer:
    """state_scale: of [state_dim]. action_scale: of [action_dim] or [chunk, action_dim].

    relative: bool [action_dim]; where true, the action is an offset from the observed state of the
    same index, and so are its statistics.
    """

    state_scale: Scaling
    action_scale: Scaling
    relative: NDArray[np.bool_]

    def state(self, x: ArrayLike) -> NDArray[np.floating]:
        """Policy units [..., state_dim] -> normalised; not clipped."""
        return self.state_scale.normalise(x)

    def offsets(self, normalised: ArrayLike) -> NDArray[np.floating]:
        """The network's [..., chunk, padded] -> [..., chunk, action_dim], relative as they are."""
        return self.action_scale.unnormalise(np.asarray(normalised)[..., : self.relative.size])

    def actions(self, normalised: ArrayLike, state: ArrayLike) -> NDArray[np.floating]:
        """The network's [..., chunk, padded] -> absolute actions [..., chunk, action_dim].

        state: [..., state_dim] of the chunk's own observation; all its offsets start from it.
        """
        return self.offsets(normalised) + self._origin(state)

    def targets(self, actions: ArrayLike, state: ArrayLike) -> NDArray[np.floating]:
        """The inverse of `actions`, without padding: what the network is trained to say."""
        x = np.asarray(actions, self.action_scale.origin.dtype) - self._origin(state)
        return self.action_scale.normalise(x)

    def _origin(self, state: ArrayLike) -> NDArray[np.floating]:
        """[..., 1, action_dim]: the observed state where the action is relative, else 0."""
        dtype = self.action_scale.origin.dtype
        origin = np.zeros((*np.shape(state)[:-1], 1, self.relative.size), dtype)
        dims = np.flatnonzero(self.relative)
        origin[..., dims] = np.asarray(state, dtype)[..., None, dims]
        return origin
