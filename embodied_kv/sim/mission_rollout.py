"""Whole missions in words: a planner is asked, a simulated executor does as it says, or fails to.

Knows tables, chance and what a planner is asked for. Does not know MuJoCo, tokens, or who plans:
the oracle is one planner of several.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from embodied_kv.sim.mission_draws import draw_accident
from embodied_kv.sim.mission_oracle import Progress, Step, begin, next_step
from embodied_kv.sim.mission_table import KnownTable
from embodied_kv.sim.missions import Mission
from embodied_kv.sim.tasks import PHRASES, Task

MOST = 60  # steps of a mission
TEMPLATES = [
    (family, re.compile(words.format(x='(?P<x>.+)', y='(?P<y>.+)', side='(?P<s>.+)', **way)))
    for family, (words, *_) in PHRASES.items()
    for way in (dict(on='into', off='out of'), dict(on='on', off='off'))
]


@dataclass(frozen=True)
class Turn:
    """A moment at which the planner is asked. right: what the rules say; said: by the planner."""

    table: KnownTable
    progress: Progress
    right: Step
    said: str


def parse_task(words: str) -> Task | None:
    """The task of an instruction in its plainest words (`Task.phrase(0)`); None for any other."""
    for family, template in TEMPLATES:
        if match := template.fullmatch(words):
            named = match.groupdict()
            task = Task(family, named['x'], named.get('y', ''), named.get('s', ''))
            return task if task.phrase(0) == words else None
    return None


def roll_out(
    mission: Mission,
    table: KnownTable,
    rng: np.random.Generator,
    success: float,
    plan: Callable[[KnownTable, Progress], str] | None = None,
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
