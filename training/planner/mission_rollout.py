"""Roll-outs of missions: a planner is asked in words, and a simulated executor acts, or fails.

This module knows tables, probabilities and the questions to a planner. It knows neither MuJoCo,
tokens, nor which planner answers: the oracle is one of several.
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
    """A moment at which the planner is asked. right: step by the rules; said: its answer."""

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
    """Yield the turns of a mission, until it is over or an answer is wrong.

    success: probability that a step is done. plan: returns the planner's words; None is the
    oracle. Right answers are carried out; the first wrong one ends the mission.
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
