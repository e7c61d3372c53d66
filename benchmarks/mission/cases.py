"""Missions on drawn scenes: the scene, its history, the request and the right end.

Knows scenes, tables and the rules of missions. Does not know how they are carried out. The seeds
of the scenes begin beyond all those of training, evaluation and the demo.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from embodied_kv.demo.sim.language import where_is
from embodied_kv.demo.sim.scene import SceneConfig
from embodied_kv.demo.sim.table_memory import TABLE, true_table
from embodied_kv.demo.sim.tabletop import Tabletop, Truth
from embodied_kv.demo.sim.tasks import Task, task_scene
from training.planner.household import any_of
from training.planner.mission_draws import draw_mission
from training.planner.mission_phrases import say_mission
from training.planner.mission_rollout import roll_out
from training.planner.missions import Mission
from training.planner.simulated_table import ROOM, SimulatedTable

FIRST_SCENE = 5_000_000
RECORDS = (5, 20)  # fewest and most tasks in the history
TRIES = 200  # attempts to draw a suitable mission
ENDS = ('over', 'impossible')


@dataclass(frozen=True)
class Case:
    """A scene, its history, and a mission.

    needs_memory: whether the mission needs more than the visible scene. table: the true table,
    with its history. after: the table after the mission. said: the answers that are expected.
    ends: one of ENDS.
    """

    number: int
    needs_memory: bool
    table: SimulatedTable
    mission: Mission
    words: str
    after: SimulatedTable
    said: tuple[str, ...]
    ends: str


def scene(image_size: int) -> SceneConfig:
    """Return the config of scenes with two places and two to four things, some put away."""
    return task_scene('put', crowded=True, image_size=image_size)


def draw_case(table: Tabletop, number: int) -> Case:
    """Reset the table to the scene of that number, and return a mission in it.

    Every other mission needs memory.
    """
    table.reset(FIRST_SCENE + number)
    rng = np.random.default_rng((FIRST_SCENE, number))
    lying = true_table(table.truth())
    known = with_history(rng, lying, int(rng.integers(*RECORDS, endpoint=True)))
    needs = number % 2 == 1
    for _ in range(TRIES):
        mission = draw_mission(rng, known)
        *_, last = turns = list(roll_out(mission, known, rng, 1.0))
        if needs_memory(mission) == needs and last.right.kind in ENDS and len(turns) > 2:
            break
    said = tuple(turn.right.words for turn in turns if turn.right.kind == 'say')
    words = ''.join(say_mission(mission, rng))
    return Case(number, needs, known, mission, words, last.table, said, last.right.kind)


def needs_memory(mission: Mission) -> bool:
    """Return whether a mission asks about earlier tasks."""
    return any(part.kind in ('back', 'undo') or part.about == 'moved' for part in mission.parts)


def with_history(rng: np.random.Generator, lying: SimulatedTable, records: int) -> SimulatedTable:
    """Return the same table with a history of at least so many tasks that lead to it."""
    table = SimulatedTable(dict.fromkeys(lying.where, TABLE), lying.places)
    for _ in range(records):
        name = any_of(rng, list(table.where))
        if (task := _move(table, name, any_of(rng, [TABLE, *table.places]))) is not None:
            table = table.do(task)
    while off := [name for name in table.where if table.where[name] != lying.where[name]]:
        task = next((t for n in off if (t := _move(table, n, lying.where[n]))), None)
        table = table.do(task or _move(table, off[0], TABLE))  # two things exchange their places
    return SimulatedTable(lying.where, lying.places, lying.beside, table.records)


def _move(table: SimulatedTable, name: str, place: str) -> Task | None:
    """Return the task that moves a thing to a place; None if there is none."""
    if table.where[name] == place:
        return None
    if place == TABLE:
        return Task('take', name, table.where[name])
    return Task('put', name, place) if len(table.inside(place)) < ROOM else None


def is_done(case: Case, truth: Truth, said: tuple[str, ...]) -> bool:
    """Return whether all things are where they should be, and nothing else was moved or said."""
    now = true_table(truth)
    beside = {n: w for n, w in case.after.beside.items() if case.table.beside.get(n) != w}
    lies = all(
        words in where_is(name, truth) or _is_next(now, name, words)
        for name, words in beside.items()
    )
    return now.where == dict(case.after.where) and lies and said == case.said


def _is_next(now: SimulatedTable, name: str, words: str) -> bool:
    return now.beside.get(words.removeprefix('next to the ')) == f'next to the {name}'
