"""The numbers of a training run, and what follows from the step alone: weights of losses, rate.

Two stages over one model. Grounding: where is what; without it a policy learns the habits of the
arm and not what it is told. Then all of it: actions and words, with grounding beside them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Recipe:
    """Metadata `help` is the command line's."""

    ground_steps: int = field(default=1500, metadata=dict(help='steps that only ground'))
    joint_steps: int = field(default=9000, metadata=dict(help='steps of everything, after those'))
    batch: int = field(default=64, metadata=dict(help='samples of a step'))
    draws: int = field(default=4, metadata=dict(help='(time, noise) pairs of a sample'))
    rate: float = field(default=1e-3, metadata=dict(help='peak learning rate'))
    decay: float = field(default=0.02, metadata=dict(help='weight decay of matrices'))
    clip: float = field(default=1.0, metadata=dict(help='largest norm of a gradient'))
    average: float = field(default=0.998, metadata=dict(help='EMA of the weights that ship'))
    seed: int = field(default=0, metadata=dict(help='of weights, batches and noise'))

    @property
    def steps(self) -> int:
        return self.ground_steps + self.joint_steps

    def grounds(self, step: int) -> bool:
        """Whether the step belongs to the first stage."""
        return step < self.ground_steps

    def weights(self, step: int) -> dict[str, float]:
        """Of the losses, by name."""
        if self.grounds(step):
            return {'where': 1.0, 'goal': 1.0, 'detect': 1.0, 'text': 0.3}
        return {'flow': 1.0, 'text': 1.0, 'goal': 1.0, 'where': 0.5, 'detect': 0.5}

    def learning_rate(self, step: int, warm: int = 200) -> float:
        """A linear start, then constant while grounding, then half a cosine down to a fiftieth."""
        done = max(0, step - self.ground_steps) / max(1, self.joint_steps)
        share = 0.02 + 0.98 * (1 + math.cos(math.pi * min(1.0, done))) / 2
        return self.rate * min(1.0, (step + 1) / warm) * share

    def averaging(self, step: int) -> float:
        """How much of the average stays at this step; young averages forget faster."""
        return min(self.average, (1 + step) / (10 + step))
