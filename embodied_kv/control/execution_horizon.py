"""The execution horizon H: the number of actions of a chunk that the robot executes.

H counts from the start of the chunk and is between 1 and the chunk size. Policies compute it from
the updates U [steps, chunk size] of denoising: the L2 norm of the update of each action in each
Euler step, over the normalised action dimensions of the robot. Source: Kairos, section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from embodied_kv.types import ActionChunk

FEWEST_STEPS = 3  # with fewer, the mean of the earlier updates is meaningless

Policy = Callable[[np.ndarray], int]


@dataclass(frozen=True)
class Static:
    """Policy with a constant H, at most the chunk size."""

    actions: int

    def __post_init__(self) -> None:
        _at_least_one(self.actions, 'H')

    def __call__(self, updates: np.ndarray) -> int:
        return min(self.actions, _checked(updates).shape[1])

    def __str__(self) -> str:
        return f'static:{self.actions}'


@dataclass(frozen=True)
class Confidence:
    """Policy that executes as far as denoising has converged (section 3.1, Figure 7).

    With i, the first action (counted from 1) for which

        U[K, i] > (1 + t) * mean(U[1, i], ..., U[K - 1, i])

    or an update is not finite, H is max(i - 1, minimum). Without such an action H is the chunk
    size. With fewer than 3 Euler steps H is the minimum.
    """

    threshold: float
    minimum: int

    def __post_init__(self) -> None:
        if not -1 <= self.threshold < np.inf:
            raise ValueError(f'threshold must be finite and >= -1 (got {self.threshold})')
        _at_least_one(self.minimum, 'minimum')

    def __call__(self, updates: np.ndarray) -> int:
        steps, chunk = _checked(updates).shape
        sure = 0
        if steps >= FEWEST_STEPS:
            earlier, final = _revisions(updates)
            with np.errstate(invalid='ignore'):
                stops = ~((final <= (1 + self.threshold) * earlier) & np.isfinite(earlier))
            sure = int(stops.argmax()) if stops.any() else chunk
        return min(max(sure, self.minimum), chunk)

    def __str__(self) -> str:
        return f'confidence:{self.threshold:g}:{self.minimum}'


@dataclass(frozen=True)
class Whole:
    """Policy that executes whole chunks."""

    def __call__(self, updates: np.ndarray) -> int:
        return _checked(updates).shape[1]

    def __str__(self) -> str:
        return 'whole'


@dataclass(frozen=True)
class AtMost:
    """Another policy, limited to a number of actions, as for a chunk that is sent in part."""

    policy: Policy
    actions: int

    def __call__(self, updates: np.ndarray) -> int:
        return min(self.policy(updates), self.actions)


def confidence(updates: np.ndarray) -> np.ndarray:
    """Return the confidence in each action, float32 [chunk size] in [0, 1].

    The confidence is m / (m + f) with the final update f and the mean m of the earlier updates: 1
    if the last step changed nothing, 0.5 if it changed as much as the mean step before it, and 0
    if only the last step changed the action. `Confidence(t)` executes actions while this value is
    at least 1 / (2 + t). It is 0 with fewer than 3 steps, or if an update is not finite.
    """
    if _checked(updates).shape[0] < FEWEST_STEPS:
        return np.zeros(updates.shape[1], np.float32)
    earlier, final = _revisions(updates)
    with np.errstate(invalid='ignore', divide='ignore'):
        sure = earlier / (earlier + final)
    sure = np.where(earlier + final == 0, 1.0, sure)
    return np.where(np.isfinite(sure), sure, 0.0).astype(np.float32)


def with_execution_horizon(chunk: ActionChunk, policy: Policy) -> ActionChunk:
    """Return the chunk with its H and the confidence of its actions.

    Raises:
        ValueError: The chunk has no updates, or their shape is wrong.
    """
    updates = chunk.updates
    if updates is None:
        raise ValueError(
            'updates of a chunk must be given (got None); the engine must return them'
        )
    return replace(chunk, execution_horizon=policy(updates), confidence=confidence(updates))


def parse(text: str) -> Policy:
    """Return the policy that a parameter or a message names.

    Args:
        text: 'whole', 'static:5' or 'confidence:0.2:3' (threshold and minimum).

    Raises:
        ValueError: The text names no policy.
    """
    name, *numbers = text.split(':')
    try:
        if name == 'static' and len(numbers) == 1:
            return Static(int(numbers[0]))
        if name == 'confidence' and len(numbers) == 2:
            return Confidence(float(numbers[0]), int(numbers[1]))
    except ValueError as error:
        raise ValueError(f'horizon policy {text!r}: {error}') from None
    if text == 'whole':
        return Whole()
    raise ValueError(
        f'horizon policy must be whole, static:H or confidence:T:H_MIN (got {text!r})'
    )


def _revisions(updates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of the earlier updates and the final one, float64 [chunk size] each."""
    updates = np.asarray(updates, np.float64)
    return updates[:-1].mean(0), updates[-1]


def _checked(updates: np.ndarray) -> np.ndarray:
    if updates.ndim != 2 or not updates.size:
        raise ValueError(f'updates must be [steps, chunk size] (got {list(updates.shape)})')
    return updates


def _at_least_one(actions: int, what: str) -> None:
    if isinstance(actions, bool) or not isinstance(actions, int) or actions < 1:
        raise ValueError(f'{what} must be an integer >= 1 (got {actions})')
