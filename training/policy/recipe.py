"""Recipe of a policy's training: weights of losses and learning rate, by step.

Two stages train one model. The first one only grounds (where is which thing); without it a policy
learns the habits of the arm instead of its instruction. The second one trains actions and words,
in addition to grounding.
"""

from __future__ import annotations

from dataclasses import dataclass

from training.common.recipe import Recipe, cooling, option


@dataclass(frozen=True)
class PolicyRecipe(Recipe):
    """Numbers of a training. The metadata `help` of a field is its command-line help."""

    ground_steps: int = option(1500, 'steps that only ground')
    joint_steps: int = option(9000, 'steps of everything, after those')
    batch: int = option(64, 'samples of a step')
    draws: int = option(4, '(time, noise) pairs of a sample')
    rtc: int = option(0, 'first actions of a chunk that may be given, for rtc: trained; 0: none')
    memory_rows: int = option(0, 'most memory rows of a sample; 0: no memory')
    rate: float = option(1e-3, 'peak learning rate')
    average: float = option(0.998, 'EMA of the weights that ship')

    @property
    def steps(self) -> int:
        return self.ground_steps + self.joint_steps

    def grounds(self, step: int) -> bool:
        """Return whether the step belongs to the first stage."""
        return step < self.ground_steps

    def weights(self, step: int) -> dict[str, float]:
        """Return the weights of the losses, by name."""
        if self.grounds(step):
            return {'where': 1.0, 'goal': 1.0, 'detect': 1.0, 'text': 0.3}
        return {'flow': 1.0, 'text': 1.0, 'goal': 1.0, 'where': 0.5, 'detect': 0.5}

    def learning_rate(self, step: int, warm: int = 200) -> float:
        """Return the rate: linear warm-up, constant while grounding, half a cosine to 1/50."""
        done = max(0, step - self.ground_steps) / max(1, self.joint_steps)
        return self.rate * min(1.0, (step + 1) / warm) * cooling(done)
