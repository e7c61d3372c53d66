"""The base of all recipes: numbers that are command-line options, and values derived from them.

This module knows steps and rates, not the content of lessons.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import cos, pi
from typing import ClassVar

import numpy as np


def option(default: object, help: str):
    """Return a field of a recipe. help: text of its command-line option."""
    return field(default=default, metadata=dict(help=help))


@dataclass(frozen=True)
class Recipe:
    """Numbers of a training. The metadata `help` of a field is its command-line help."""

    rate: float = option(2e-3, 'peak learning rate')
    decay: float = option(0.02, 'weight decay of matrices')
    clip: float = option(1.0, 'largest norm of a gradient')
    average: float = option(0.99, 'EMA of the weights that ship')
    seed: int = option(0, 'of weights and all that is drawn')

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        raise NotImplementedError

    def averaging(self, step: int) -> float:
        """Return the EMA decay of a step; it is smaller in the first steps."""
        return min(self.average, (1 + step) / (10 + step))


@dataclass(frozen=True)
class GrowingRecipe(Recipe):
    """Recipe of prompts that grow up to MOST segments. Shares are fractions of all steps."""

    MOST: ClassVar[int]
    steps: int = option(6000, 'of the whole run')
    short: int = option(12, 'most segments of a prompt at the start')
    ask: float = option(0.12, 'share after which answers are learnt')
    hold: float = option(0.15, 'share after which prompts grow')
    grow: float = option(0.6, 'share after which they are all sizes')

    def learning_rate(self, step: int, warm: int = 50) -> float:
        """Return the rate: linear warm-up, then half a cosine down to 1/50."""
        return self.rate * min(1.0, (step + 1) / warm) * cooling(step / max(1, self.steps))

    def longest(self, step: int) -> int:
        """Return the largest number of segments of a step's prompts."""
        grown = (step / self.steps - self.hold) / max(1e-9, self.grow - self.hold)
        return self.short + int((self.MOST - self.short) * min(1.0, max(0.0, grown)))

    def asks(self, step: int) -> bool:
        """Return whether answers are learnt at this step."""
        return step >= self.ask * self.steps


def stage_of(steps: tuple[int, ...], step: int) -> int:
    """Return the stage that a step belongs to; after the last step, the last stage.

    steps: number of steps of each stage.
    """
    stage = int(np.searchsorted(np.cumsum(steps), step, side='right'))
    return min(stage, len(steps) - 1)


def cooling(done: float) -> float:
    """Return half a cosine from 1 down to 1/50, as `done` goes from 0 to 1."""
    return 0.02 + 0.98 * (1 + cos(pi * min(1.0, done))) / 2
