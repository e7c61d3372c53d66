"""Recipe of a policy's training by contract: the tabletop's, for less data."""

from __future__ import annotations

from dataclasses import dataclass

from training.common.recipe import option
from training.policy.recipe import PolicyRecipe


@dataclass(frozen=True)
class RunRecipe(PolicyRecipe):
    """Numbers of a training. The metadata `help` of a field is its command-line help."""

    ground_steps: int = option(400, 'steps that only ground, where the data says where things are')
    joint_steps: int = option(4000, 'steps of everything, after those')

    def learning_rate(self, step: int, warm: int = 50) -> float:
        """Return the rate of the tabletop's recipe, with a shorter warm-up."""
        return super().learning_rate(step, warm)
