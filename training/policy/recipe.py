"""The numbers of a training run, and what follows from the step alone: weights of losses, rate.

Two stages over one model. Grounding: where is what; without it a policy learns the habits of the
arm and not what it is told. Then all of it: actions and words, with grounding beside them.
"""

from __future__ import annotations

from dataclasses import dataclass

from training.common.recipe import Recipe, cooling, option


@dataclass(frozen=True)
class PolicyRecipe(Recipe):
    """Metadata `help` is the command line's."""

    ground_steps: int = option(1500, 'steps that only ground')
    joint_steps: int = option(9000, 'steps of everything, after those')
    batch: int = option(64, 'samples of a step')
    draws: int = option(4, '(time, noise) pairs of a sample')
    rtc: int = option(0, 'first actions of a chunk that may be given, for rtc: trained; 0: none')
    rate: float = option(1e-3, 'peak learning rate')
    average: float = option(0.998, 'EMA of the weights that ship')

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
        return self.rate * min(1.0, (step + 1) / warm) * cooling(done)
