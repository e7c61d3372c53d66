"""What the robot can be told, and when it has done it: four families of tasks over a table.

Knows words, metres and who lies where. Does not know how a task is done (`expert`), MuJoCo or
policies. Left and right are the robot's: left is +y.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embodied_kv.sim.scene import MOVABLE, RECEPTACLES, SceneConfig
from embodied_kv.sim.tabletop import ObjectTruth, Truth

FAMILIES = ('reach', 'pick', 'put', 'push')
SIDES = {'left': 1.0, 'right': -1.0}  # sign of y
SECONDS = {'reach': 6.0, 'pick': 10.0, 'put': 15.0, 'push': 15.0}  # that a task may take
PHRASES = {
    'reach': ('reach the {x}', 'move to the {x}', 'go above the {x}', 'hover over the {x}'),
    'pick': ('pick up the {x}', 'lift the {x}', 'grasp the {x}', 'take the {x}'),
    'put': (
        'put the {x} {on} the {y}',
        'place the {x} {on} the {y}',
        'move the {x} {on} the {y}',
        'set the {x} down {on} the {y}',
    ),
    'push': (
        'push the {x} to the {side}',
        'slide the {x} to the {side}',
        'push the {x} over to the {side} side',
        'shift the {x} to the {side}',
    ),
}
HOVER = 0.13  # m above the table, of the gripper point that reaches for a thing
SIDE_LINE = 0.24  # m; a thing beyond this |y| lies at the side of the table
STEADY = 5  # control periods that a reach or a pick has to last
ROOM = 0.10  # m that a thing must have to be pushed


@dataclass(frozen=True)
class Task:
    """family: one of FAMILIES. target, place: names of things. side: of a push."""

    family: str
    target: str
    place: str = ''
    side: str = ''

    def phrase(self, number: int) -> str:
        """The instruction in words; `number` chooses among the ways to say it."""
        phrases = PHRASES[self.family]
        on = 'into' if self.place.endswith('bin') else ('on', 'onto')[number // len(phrases) % 2]
        words = phrases[number % len(phrases)]
        return words.format(x=self.target, y=self.place, on=on, side=self.side)


def task_scene(family: str | None = None, **changes) -> SceneConfig:
    """Scenes of 2 to 5 objects in which every task of the family can be told."""
    receptacles = (1, 1) if family == 'put' else (0, 1)
    return SceneConfig(**{'objects': (2, 5), 'receptacles': receptacles, **changes})


def draw_task(
    things: Sequence[ObjectTruth], rng: np.random.Generator, family: str | None = None
) -> Task | None:
    """A task that makes sense for things as they lie; None where there is none."""
    options = [t for f in ((family,) if family else FAMILIES) if (t := _options(f, things))]
    if not options:
        return None
    tasks = options[rng.integers(len(options))]
    return tasks[rng.integers(len(tasks))]


def _options(family: str, things: Sequence[ObjectTruth]) -> list[Task]:
    places = [t for t in things if t.shape in RECEPTACLES]
    taken = {
        name
        for t in things
        for p in places
        if t.shape in MOVABLE and lies_in(t, p)
        for name in (t.name, p.name)
    }
    free = [t for t in things if can_be_taken(t) and t.name not in taken]
    match family:
        case 'put':
            return [
                Task('put', t.name, p.name) for t in free for p in places if p.name not in taken
            ]
        case 'push':
            return [
                Task('push', t.name, side=side)
                for t in free
                for side, sign in SIDES.items()
                if sign * t.position[1] < SIDE_LINE - ROOM
                and not any(_in_the_way(t, p, sign) for p in places)
            ]
    return [Task(family, t.name) for t in free]


def can_be_taken(thing: ObjectTruth) -> bool:
    """Whether it is movable, upright (a cylinder on its side lies lower), and within reach."""
    x, y, z = thing.position
    upright = z - thing.size[2] / 2 > -0.004
    return bool(thing.shape in MOVABLE and upright and np.hypot(x, y) < 0.62 and abs(y) < 0.3)


def lies_in(thing: ObjectTruth, place: ObjectTruth) -> bool:
    """Whether a thing rests on a plate or in a bin."""
    apart = np.hypot(*(thing.position - place.position)[:2])
    return bool(apart < 0.05 and thing.position[2] - thing.size[2] / 2 < 0.045)


def _in_the_way(thing: ObjectTruth, place: ObjectTruth, sign: float) -> bool:
    x, y, _ = place.position - thing.position
    return bool(abs(x) < 0.12 and sign * y > -0.12)


class Judge:
    """Success of one task, from the truth of every control period since it was told.

    done: the task is done. wrong: the same was done to another object instead.
    """

    def __init__(self, task: Task, truth: Truth) -> None:
        self.task = task
        self._start = {thing.name: thing.position.copy() for thing in truth.things}
        self._held = truth.held  # from an earlier task: nobody's mistake
        self._steady: dict[str, int] = {}
        self.done = self.wrong = False

    def see(self, truth: Truth) -> None:
        """Takes the next moment."""
        place = next((t for t in truth.things if t.name == self.task.place), None)
        for thing in truth.things:
            if thing.shape not in MOVABLE:
                continue
            now = self._is_done(thing, truth, place)
            count = self._steady[thing.name] = now * (self._steady.get(thing.name, 0) + 1)
            if count >= (STEADY if self.task.family in ('reach', 'pick') else 1):
                if thing.name == self.task.target:
                    self.done = True
                elif not self.done and thing.name != self._held:
                    self.wrong = True

    def _is_done(self, thing: ObjectTruth, truth: Truth, place: ObjectTruth | None) -> bool:
        moved = thing.position - self._start[thing.name]
        match self.task.family:
            case 'reach':
                apart = truth.grip - thing.position
                return bool(np.hypot(*apart[:2]) < 0.025 and 0.08 < truth.grip[2] < 0.18)
            case 'pick':
                return bool(thing.position[2] - thing.size[2] / 2 > 0.06)
            case 'put':
                was_there = np.hypot(*(self._start[thing.name] - place.position)[:2]) < 0.05
                return not was_there and truth.held != thing.name and lies_in(thing, place)
        enough = SIDES[self.task.side] * moved[1] > 0.08 and thing.position[2] > 0
        others = self.task.target != thing.name and self._target_moved(truth)
        return bool(enough and not others)

    def _target_moved(self, truth: Truth) -> bool:
        """An object that the target pushes along is not a wrong one."""
        target = next(t for t in truth.things if t.name == self.task.target)
        return bool(np.hypot(*(target.position - self._start[target.name])[:2]) > 0.02)
