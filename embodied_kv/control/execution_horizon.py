"""The execution horizon H: how many actions of a chunk a robot executes before it asks again.

Knows the updates of denoising and nothing of the model that made them.

U [steps, chunk size] is the L2 norm of each Euler step's update of each action, over the robot's
own action dimensions, normalised. H counts from the chunk's start, is at least 1 and never above
the chunk size. Source: Kairos, section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from embodied_kv.types import ActionChunk

FEWEST_STEPS = 3  # with fewer there is no mean of earlier updates worth the name

Policy = Callable[[np.ndarray], int]


@dataclass(frozen=True)
class Static:
    """The same H in every round; ignores U but for the chunk size."""

    actions: int

    def __post_init__(self) -> None:
        _at_least_one(self.actions, 'a static horizon')

    def __call__(self, updates: np.ndarray) -> int:
        return min(self.actions, _checked(updates).shape[1])

    def __str__(self) -> str:
        return f'static:{self.actions}'


@dataclass(frozen=True)
class Confidence:
    """Execute as far as denoising has converged (section 3.1, Figure 7).

    Walking from the first action, it stops at the first action i (from 1) with

        U[K, i] > (1 + t) * mean(U[1, i], ..., U[K - 1, i])

    and answers H = max(i - 1, minimum), the whole chunk where no action stops it. A NaN or an
    infinite update stops it. With fewer than 3 Euler steps it answers the minimum.
    """

    threshold: float
    minimum: int

    def __post_init__(self) -> None:
        if not -1 <= self.threshold < np.inf:
            raise ValueError(f'confidence threshold {self.threshold} is not in [-1, inf)')
        _at_least_one(self.minimum, 'the least horizon')

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
    """All of every chunk."""

    def __call__(self, updates: np.ndarray) -> int:
        return _checked(updates).shape[1]

    def __str__(self) -> str:
        return 'whole'


@dataclass(frozen=True)
class Custom:
    """Any rule of one's own; its answer is kept within the chunk. Raises TypeError if no int."""

    rule: Policy

    def __call__(self, updates: np.ndarray) -> int:
        actions = self.rule(_checked(updates))
        if isinstance(actions, bool) or not isinstance(actions, (int, np.integer)):
            raise TypeError(f'a horizon policy must return a whole number (got {actions!r})')
        return min(max(int(actions), 1), updates.shape[1])


@dataclass(frozen=True)
class AtMost:
    """Another policy, for a chunk of which only so many actions are sent."""

    policy: Policy
    actions: int

    def __call__(self, updates: np.ndarray) -> int:
        return min(self.policy(updates), self.actions)


def confidence(updates: np.ndarray) -> np.ndarray:
    """How sure denoising is of each action, float32 [chunk size] in [0, 1].

    m / (m + f), where f is the final update and m the mean of the earlier ones: 1 where the last
    step changed nothing, 0.5 where it changed as much as a mean step before it, 0 where it alone
    did. So `Confidence(t)` goes as far as this is at least 1 / (2 + t). 0 where nothing is known:
    fewer than 3 steps, or an update that is not finite.
    """
    if _checked(updates).shape[0] < FEWEST_STEPS:
        return np.zeros(updates.shape[1], np.float32)
    earlier, final = _revisions(updates)
    with np.errstate(invalid='ignore', divide='ignore'):
        sure = earlier / (earlier + final)
    sure = np.where(earlier + final == 0, 1.0, sure)
    return np.where(np.isfinite(sure), sure, 0.0).astype(np.float32)


def with_execution_horizon(chunk: ActionChunk, policy: Policy) -> ActionChunk:
    """The chunk with its H and the confidence of its actions, from its updates.

    Raises ValueError for a chunk without updates, and what the policy raises.
    """
    updates = chunk.updates
    if updates is None:
        raise ValueError(
            'updates of a chunk must be given (got None); the engine must return them'
        )
    return replace(chunk, execution_horizon=policy(updates), confidence=confidence(updates))


def parse(text: str, known: Mapping[str, Policy] | None = None) -> Policy:
    """The policy that a parameter or a message names.

    'whole', 'static:5', 'confidence:0.2:3' (threshold, minimum), or the name of one of `known`,
    which the server's own code provides: nothing is ever imported by a name that came from
    outside. Raises ValueError that shows the text and what is allowed.
    """
    known = known or {}
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
    if text in known:
        return Custom(known[text])
    names = ''.join(f', {name}' for name in known)
    raise ValueError(f'horizon policy {text!r}: write whole, static:H, confidence:T:H_MIN{names}')


def _revisions(updates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean of the earlier updates and the final one, float64 [chunk size] each."""
    updates = np.asarray(updates, np.float64)
    return updates[:-1].mean(0), updates[-1]


def _checked(updates: np.ndarray) -> np.ndarray:
    if updates.ndim != 2 or not updates.size:
        raise ValueError(f'updates are {list(updates.shape)}: they must be [steps, chunk size]')
    return updates


def _at_least_one(actions: int, what: str) -> None:
    if isinstance(actions, bool) or not isinstance(actions, int) or actions < 1:
        raise ValueError(f'{what} must be a whole number of actions from 1 (got {actions})')
