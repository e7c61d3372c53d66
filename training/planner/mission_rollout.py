"""Whole missions in words: a planner is asked, a simulated executor does as it says, or fails to.

Knows tables, chance and what a planner is asked for. Does not know MuJoCo, tokens, or who plans:
the oracle is one planner of several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from training.planner.mission_draws import draw_accident
from training.planner.mission_oracle import Progress, Step, begin, next_step
from training.planner.missions import Mission
from training.planner.simulated_table import SimulatedTable

MOST = 60  # steps of a mission


@dataclass(frozen=True)
class Turn:
    """A moment at which the planner is asked. right: what the rules say; said: by the planner."""

    table: SimulatedTable
    progress: Progress
    right: Step
    said: str


def roll_out(
    mission: Mission,
    table: SimulatedTable,
    rng: np.random.Generator,
    success: float,
    plan: Callable[[SimulatedTable, Progress], str] | None = None,
) -> Iterator[Turn]:
    """The mission's turns, until it is over or the planner says what is not right.

    success: probability that a step is done. plan: the planner's words; None is the oracle. What
    it says is carried out where it is right; the first turn that is not is the last.
    """
    progress = begin(table)
    for _ in range(MOST):
        right = next_step(mission, table, progress)
        said = plan(table, progress) if plan else right.text
        yield Turn(table, progress, right, said)
        if said != right.text or right.kind in ('over', 'impossible', 'give up'):
            return
        done = right.task is None or rng.random() < success
        if right.task:
            accident = draw_accident(rng, right.task, table)
            table = table.do(right.task) if done else table.fail(right.task, accident)
        progress = progress.after(right, done, table)
