"""Moments of drawn missions to learn from: a memory, and many questions about it.

One mission was executed on the memory's table, with failures. The others are only asked about: at
any part, and with tried steps that need not be in the records, because the rules look up records
by number only. This module knows missions and random draws, not tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from embodied_kv.demo.sim.table_memory import TABLE
from embodied_kv.demo.sim.tasks import Task
from embodied_kv.model.planner_prompts import Tried as Told
from embodied_kv.model.planner_prompts import mission_question
from training.planner.household import Fact, any_of
from training.planner.mission_draws import PARTS, choose, draw_mission, draw_part, draw_table
from training.planner.mission_oracle import Progress, Step, Tried, begin, next_step
from training.planner.mission_phrases import say_mission
from training.planner.mission_rollout import roll_out
from training.planner.missions import ImpossibleMissionError, Mission, Part, place_of
from training.planner.simulated_table import LAST, SimulatedTable

SUCCESS = 0.7  # probability that a step of the executed mission succeeds
OWN = 3  # questions about it, each in other words
OVER = 0.04  # share of questions after the last part
ASKED = {  # shares of current parts: harder ones, which look up records, are more frequent
    'put': 0.28,
    'take': 0.12,
    'next': 0.02,
    'push': 0.02,
    'back': 0.12,
    'undo': 0.36,
    'say': 0.08,
}
EXCLUDING, DRAWS = 0.5, 8  # least share of such parts that name what is not meant; most draws
FAILED = 0.3  # share of questions with failed steps
GARBLED = 0.03  # share of questions with an unknown word
UNKNOWN = 'I do not understand'


@dataclass(frozen=True)
class Case:
    """One question on a memory. said: the parts' words; truth: the correct answer.

    meant: things that each part is about, None where that is undefined; left: things that are
    still to be moved in the current part.
    """

    said: tuple[str, ...]
    mission: Mission
    progress: Progress
    truth: str
    meant: tuple[tuple[str, ...] | None, ...] = ()
    left: tuple[str, ...] = ()

    @property
    def question(self) -> str:
        words = ''.join(self.said)
        return question_of(words, self.progress)

    @property
    def kind(self) -> str:
        parts, part = self.mission.parts, self.progress.part
        return parts[part].kind if part < len(parts) else 'over'


def question_of(words: str, progress: Progress) -> str:
    """Return `mission_question` for a progress. words: of the mission."""
    tried = [Told(one.task.phrase(0) if one.task else 'say: ', one.done) for one in progress.tried]
    return mission_question(words, progress.part + 1, progress.moves, tried)


def draw_moment(rng: np.random.Generator, records: int) -> tuple[SimulatedTable, Iterator[Case]]:
    """Return a table, whose history began with `records` records, and endless cases on it."""
    before = draw_table(rng, records)
    mission = draw_mission(rng, before)
    turns = list(roll_out(mission, before, rng, SUCCESS))
    turn = turns[int(rng.integers(max(1, len(turns) - 1)))]
    return turn.table, _cases(rng, turn.table, mission, turn.progress)


def _cases(
    rng: np.random.Generator, table: SimulatedTable, mission: Mission, progress: Progress
) -> Iterator[Case]:
    for _ in range(OWN):
        yield case_of(rng, table, mission, progress)
    while True:
        yield draw_case(rng, table)


def draw_case(rng: np.random.Generator, table: SimulatedTable) -> Case:
    """Draw a mission at one of its parts, on a table that does not show the parts before."""
    kind, wants = choose(rng, ASKED), rng.random() < EXCLUDING
    for _ in range(DRAWS if wants and kind in ('put', 'take') else 1):
        parts = list(draw_mission(rng, table, kind=kind).parts)
        if parts[0].excludes:
            break
    parts = parts[: 1 + int(rng.integers(3))]
    before = [draw_part(rng, table, choose(rng, PARTS)) for _ in range(rng.integers(3))]
    before = before[: 3 - len(parts)]
    mission = Mission((*before, *parts))
    if rng.random() < OVER:
        part = len(mission.parts)
        return case_of(rng, table, mission, Progress(part, table.moves[:LAST]))
    progress = replace(_draw_done(rng, parts[0], table), part=len(before))
    if rng.random() < FAILED:
        progress = _fail(rng, mission, table, progress)
    case = case_of(rng, table, mission, progress)
    return garble(rng, case) if rng.random() < GARBLED else case


def _draw_done(rng: np.random.Generator, part: Part, table: SimulatedTable) -> Progress:
    """Draw what may have been done in a part; moves before it are then older ones."""
    start = begin(table)
    if part.kind in ('undo', 'back') and table.moves and rng.random() < 0.4:
        count = int(rng.integers(1, max(part.steps, 1), endpoint=True))
        done = [Tried(table.records[n].task, True) for n in reversed(table.moves[:count])]
        return Progress(0, table.moves[count : count + LAST], tuple(done))
    if part.kind == 'say' and rng.random() < 0.4:
        return replace(start, tried=(Tried(None, True),))
    if part.kind in ('put', 'take') and rng.random() < 0.6:
        there = [name for name in _meant(part, table) or () if name not in _left(part, table)]
        done = [name for name in there if rng.random() < 0.6]
        return replace(start, tried=tuple(Tried(_came(rng, part, table, n), True) for n in done))
    return start


def _came(rng: np.random.Generator, part: Part, table: SimulatedTable, name: str) -> Task:
    """Return the step that may have brought a thing to where it is."""
    place = table.where[name]
    if place in table.places:
        return Task('put', name, place)
    return Task('take', name, any_of(rng, table.places or (TABLE,)))


def _fail(
    rng: np.random.Generator, mission: Mission, table: SimulatedTable, progress: Progress
) -> Progress:
    """Let some of the next steps fail; a step that picks up a thing may succeed."""
    for _ in range(rng.choice((1, 2, 3, 4), p=(0.35, 0.25, 0.25, 0.15))):
        step = next_step(mission, table, progress)
        if step.kind != 'task':
            break
        picked = step.task.family == 'pick' and rng.random() < 0.7
        progress = progress.after(step, picked, table)
    return progress


def case_of(
    rng: np.random.Generator, table: SimulatedTable, mission: Mission, progress: Progress
) -> Case:
    """Return the case of a mission's progress, in random words."""
    said = tuple(say_mission(mission, rng))
    step = next_step(mission, table, progress)
    meant = tuple(_meant(part, table) for part in mission.parts)
    return Case(said, mission, progress, step.text, meant, _still(mission, table, progress, step))


def _still(
    mission: Mission, table: SimulatedTable, progress: Progress, step: Step
) -> tuple[str, ...]:
    if progress.part >= len(mission.parts) or step.kind in ('say', 'impossible'):
        return ()
    part = mission.parts[progress.part]
    if part.kind in ('put', 'take'):
        return _left(part, table)
    return (step.task.target,) if step.task else ()


def _meant(part: Part, table: SimulatedTable) -> tuple[str, ...] | None:
    if part.kind in ('undo', 'say'):
        return None
    try:
        return tuple(part.which.of(table))
    except ImpossibleMissionError:
        return None


def _left(part: Part, table: SimulatedTable) -> tuple[str, ...]:
    try:
        goal = TABLE if part.kind == 'take' else place_of(part.place, table)
    except ImpossibleMissionError:
        return ()
    return tuple(name for name in _meant(part, table) or () if table.where[name] != goal)


def garble(rng: np.random.Generator, case: Case) -> Case:
    """Replace the name of a thing in the current part by a word without meaning.

    Returns the same case if that part names no thing.
    """
    at = case.progress.part
    names = case.mission.parts[at].which.names
    if not names:
        return case
    letters = rng.choice(list('abcdefghijklmnopqrstuvwxyz'), int(rng.integers(4, 9)))
    said = list(case.said)
    said[at] = said[at].replace(any_of(rng, names), ''.join(letters))
    meant = (*case.meant[:at], None, *case.meant[at + 1 :])
    truth = f'impossible: {UNKNOWN}'
    return replace(case, said=tuple(said), truth=truth, meant=meant, left=())


def in_some_order(rng: np.random.Generator, facts: Sequence[Fact]) -> list[Fact]:
    """Return the facts as they are or, as often, in random order."""
    if rng.random() < 0.5:
        return list(facts)
    return [facts[i] for i in rng.permutation(len(facts))]
