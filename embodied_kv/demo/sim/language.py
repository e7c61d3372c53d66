"""True sentences about a moment: the subtask, a narration, and questions with their answers.

Every sentence is derived from the true state of the table and the phase of the expert.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from embodied_kv.demo.sim.phases import Phase
from embodied_kv.demo.sim.scene import COLOURS, MOVABLE, RECEPTACLES
from embodied_kv.demo.sim.spots import NEXT
from embodied_kv.demo.sim.tasks import (
    SIDE_LINE,
    SIDES,
    Task,
    gap,
    lies_in,
    lies_on_the_table,
    off_the,
)

if TYPE_CHECKING:  # imports mujoco
    from embodied_kv.demo.sim.tabletop import Truth

T = TypeVar('T')
SHAPES = (*MOVABLE[:2], *RECEPTACLES)  # scenes have no balls
SUBTASK, NARRATE = 'Subtask:', 'Narrate:'
DONE, HELD, COUNT = 'Is it done?', 'What is in the gripper?', 'How many objects are there?'
BETWEEN = 0.03  # m, least distance in y for a question about left and right

SUBTASKS = {
    Phase.HOLD: 'done, hold still',
    Phase.PUT_DOWN: 'put down the {held}',
    Phase.OPEN: 'open the gripper',
    Phase.ABOVE: 'move above the {x}',
    Phase.LOWER: 'lower to the {x}',
    Phase.CLOSE: 'close the gripper',
    Phase.LIFT: 'lift the {x}',
    Phase.CARRY: 'move above the {y}',
    Phase.PLACE: 'lower to the {y}',
    Phase.BESIDE: 'move beside the {x}',
    Phase.LOWER_BESIDE: 'lower beside the {x}',
    Phase.PUSH: 'push the {x} to the {side}',
    Phase.LOST: 'hold still, I do not understand',
}
DOING = {
    Phase.PUT_DOWN: 'I put down the {held}',
    Phase.OPEN: 'I open the gripper',
    Phase.ABOVE: 'I move above the {x}',
    Phase.LOWER: 'I lower to the {x}',
    Phase.CLOSE: 'I close the gripper on the {x}',
    Phase.LIFT: 'I lift the {x}',
    Phase.CARRY: 'I carry the {x} to the {y}',
    Phase.PLACE: 'I lower the {x} {on} the {y}',
    Phase.BESIDE: 'I move beside the {x}',
    Phase.LOWER_BESIDE: 'I lower beside the {x}',
    Phase.PUSH: 'I push the {x}',
    Phase.LOST: 'I do not understand, I hold still',
}
PUT_BESIDE = {  # for a place beside a thing
    Phase.CARRY: 'move beside the {y}',
    Phase.PLACE: 'lower beside the {y}',
}
PUTTING_BESIDE = {
    Phase.CARRY: 'I carry the {x} next to the {y}',
    Phase.PLACE: 'I lower the {x} next to the {y}',
}
PUT_BACK = {  # for a place where the thing was before
    Phase.CARRY: 'move above where the {x} was',
    Phase.PLACE: 'lower to where the {x} was',
}
PUTTING_BACK = {
    Phase.CARRY: 'I carry the {x} back to where it was',
    Phase.PLACE: 'I lower the {x} back to where it was',
}
SUBTASKS_OF = {'take': PUT_BESIDE, 'next': PUT_BESIDE, 'return': PUT_BACK}
DOING_OF = {'take': PUTTING_BESIDE, 'next': PUTTING_BESIDE, 'return': PUTTING_BACK}
PURPOSE = {
    'reach': 'to reach it',
    'pick': 'to pick it up',
    'put': 'to put it {on} the {y}',
    'push': 'to push it to the {side}',
    'take': 'to take it {off} the {y}',
    'next': 'to put it next to the {y}',
}
RESULT = {
    'reach': 'I am above the {x}',
    'pick': 'I hold the {x}',
    'put': 'the {x} is {on} the {y}',
    'push': 'the {x} is on the {side}',
    'take': 'the {x} is on the table',
    'next': 'the {x} is next to the {y}',
}
MEMORY_PURPOSE = {
    'return': 'to put it back where it was',
    'hidden': 'to reach it',
    'sequence': 'to reach it',
}
MEMORY_RESULT = {
    'return': 'the {x} is back where it was',
    'hidden': 'I am above the {x}',
    'sequence': 'I am above the {x}',
}
OF_THE_TARGET = (
    Phase.ABOVE,
    Phase.LOWER,
    Phase.CLOSE,
    Phase.LIFT,
    Phase.BESIDE,
    Phase.LOWER_BESIDE,
    Phase.PUSH,
)


def say_subtask(phase: int, task: Task | None, truth: Truth) -> str:
    """Return the answer to SUBTASK. task: None for an unknown instruction."""
    if task is None:
        return SUBTASKS[Phase(phase)]
    special = SUBTASKS_OF.get(task.family, {})
    return _fill((SUBTASKS | special)[Phase(phase)], task, truth)


def narrate(phase: int, task: Task | None, truth: Truth) -> str:
    """Return the answer to NARRATE: the action of the robot and its purpose."""
    if task is None:
        return DOING[Phase.LOST]
    special = DOING_OF.get(task.family, {})
    result, purpose = RESULT | MEMORY_RESULT, PURPOSE | MEMORY_PURPOSE
    words = result[task.family] if phase == Phase.HOLD else (DOING | special)[Phase(phase)]
    if phase in OF_THE_TARGET:
        words = f'{words} {purpose[task.family]}'
    return _fill(words, task, truth)


def _fill(words: str, task: Task, truth: Truth) -> str:
    on, off = in_or_on(task.place), off_the(task.place)
    x = f'cover over the {task.target}' if task.family == 'hidden' else task.target
    return words.format(x=x, y=task.place, side=task.side, on=on, off=off, held=truth.held)


def in_or_on(place: str) -> str:
    """Return the preposition for a thing in a place."""
    return 'in' if place.endswith('bin') else 'on'


def where_is(name: str, truth: Truth) -> tuple[str, ...]:
    """Return all true positions of a thing in the words of the memory, the simplest first.

    Raises KeyError for an absent thing.
    """
    thing = {thing.name: thing for thing in truth.things}[name]
    if name == truth.held:
        return ('held by the robot',)
    for place in truth.things:
        if place.shape in RECEPTACLES and lies_in(thing, place, truth.things):
            return (f'{in_or_on(place.name)} the {place.name}',)
    if thing.position[2] < 0:
        return ('on the floor',)
    sides = (
        f'on the {side}' for side, sign in SIDES.items() if sign * thing.position[1] > SIDE_LINE
    )
    beside = (
        f'next to the {other.name}'
        for other in truth.things
        if other is not thing
        and other.name != truth.held
        and (other.shape in RECEPTACLES or lies_on_the_table(other, truth.things))
        and gap(thing, other) < NEXT
    )
    return ('on the table', *sides, *beside)


def ask_done(phase: int, task: Task | None, truth: Truth) -> tuple[str, str] | None:
    """Ask whether the task is done."""
    return (DONE, _yes(phase == Phase.HOLD)) if task else None


def ask_held(truth: Truth, _: np.random.Generator) -> tuple[str, str]:
    """Ask what the gripper holds."""
    return HELD, f'the {truth.held}' if truth.held else 'nothing'


def ask_count(truth: Truth, _: np.random.Generator) -> tuple[str, str]:
    """Ask for the number of movable objects; those on the floor are out of sight."""
    seen = [thing for thing in truth.things if thing.position[2] >= 0]
    return COUNT, str(sum(thing.shape in MOVABLE for thing in seen))


def ask_colour(truth: Truth, rng: np.random.Generator) -> tuple[str, str] | None:
    """Ask for the colour of the only thing of its shape."""
    shapes = [thing.shape for thing in truth.things]
    single = [thing for thing in truth.things if shapes.count(thing.shape) == 1]
    if not single:
        return None
    thing = _any(single, rng)
    return f'What colour is the {thing.shape}?', thing.colour


def ask_shape(truth: Truth, rng: np.random.Generator) -> tuple[str, str]:
    """Ask for the shape of the thing of a colour; colours are distinct."""
    thing = _any(truth.things, rng)
    return f'What shape is the {thing.colour} thing?', thing.shape


def ask_side(truth: Truth, rng: np.random.Generator) -> tuple[str, str] | None:
    """Ask whether one thing is left (+y) of another one at a clear distance."""
    pairs = [
        (a, b)
        for a in truth.things
        for b in truth.things
        if abs(a.position[1] - b.position[1]) > BETWEEN
    ]
    if not pairs:
        return None
    a, b = _any(pairs, rng)
    side = ('left', 'right')[rng.integers(2)]
    left = a.position[1] > b.position[1]
    return f'Is the {a.name} {side} of the {b.name}?', _yes(left == (side == 'left'))


def ask_exists(truth: Truth, rng: np.random.Generator) -> tuple[str, str]:
    """Ask whether there is a thing of a colour and shape; if not, one of both may be there."""
    thing = _any(truth.things, rng)
    match int(rng.integers(4)):
        case 0:
            colours = sorted(COLOURS.keys() - {thing.colour for thing in truth.things})
            name = f'{_any(colours, rng)} {_any(SHAPES, rng)}'
        case 1:
            name = f'{thing.colour} {_any([s for s in SHAPES if s != thing.shape], rng)}'
        case _:
            return f'Do you see the {thing.name}?', 'yes'
    return f'Do you see the {name}?', 'no'


def ask_inside(truth: Truth, rng: np.random.Generator) -> tuple[str, str] | None:
    """Ask for the contents of a bin or plate."""
    places = [thing for thing in truth.things if thing.shape in RECEPTACLES]
    if not places:
        return None
    place = _any(places, rng)
    inside = sorted(
        f'the {thing.name}'
        for thing in truth.things
        if thing.shape in MOVABLE
        and thing.name != truth.held
        and lies_in(thing, place, truth.things)
    )
    return f'What is {in_or_on(place.name)} the {place.name}?', ' and '.join(inside) or 'nothing'


def ask_where(truth: Truth, rng: np.random.Generator) -> tuple[str, str]:
    """Ask for the position of a movable thing."""
    thing = _any([thing for thing in truth.things if thing.shape in MOVABLE], rng)
    return f'Where is the {thing.name}?', where_is(thing.name, truth)[0]


SCENE_QUESTIONS: dict[str, Callable[[Truth, np.random.Generator], tuple[str, str] | None]] = {
    'held': ask_held,
    'count': ask_count,
    'colour': ask_colour,
    'shape': ask_shape,
    'side': ask_side,
    'exists': ask_exists,
    'inside': ask_inside,
    'where': ask_where,
}


def _any(options: Sequence[T], rng: np.random.Generator) -> T:
    return options[int(rng.integers(len(options)))]


def _yes(true: bool) -> str:
    return 'yes' if true else 'no'
