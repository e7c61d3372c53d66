"""The grammar of missions: several phrasings of things, places and order.

Any parsed mission can be phrased, whether it is possible or not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embodied_kv.demo.sim.table_memory import TABLE
from training.planner.household import any_of
from training.planner.missions import Mission, Part, Which

OF_COLOUR = ('everything {w}', 'all {w} things', 'whatever is {w}')
OF_SHAPE = ('all {w}s', 'every {w}', 'all the {w}s')
NOT_OF_COLOUR = ('everything that is not {w}', 'all things that are not {w}')
NOT_OF_SHAPE = ('everything that is no {w}', 'all things that are no {w}s')
EVERYTHING = ('everything', 'all things', 'all that you know')
LYING = ('what is {at}', 'everything {at}', 'whatever lies {at}', 'all that is {at}')
BUT = ('but', 'except')
PUT = (
    'put {x} {into}',
    'move {x} {into}',
    'bring {x} to the {y}',
    'place {x} {into}',
    'get {x} {into}',
)
CLEAR = ('empty the {y}', 'clear the {y}')
TAKE = ('take {x} {off}', 'get {x} {off}', 'remove {x} from the {y}')
NEXT = ('put {x} next to the {y}', 'move {x} next to the {y}', 'place {x} beside the {y}')
PUSH = ('push {x} to the {side}', 'slide {x} to the {side}')
BACK = (
    'put {x} back where it was',
    'bring {x} back to its place',
    'return {x} to where it was',
)
UNDO = {
    1: ('put back what you moved last', 'undo the last step', 'undo your last move'),
    2: ('undo the last two steps', 'undo your last two moves'),
    3: ('undo the last three steps', 'undo your last three moves'),
}
SAY = ('say {q}', 'tell me {q}')
QUESTIONS = {
    'where': ('where the {x} is',),
    'inside': ('what is {at}', 'what the {y} holds'),
    'held': ('what you hold', 'what is in the gripper'),
    'moved': ('what you moved last',),
}
STAY_IT = ('and leave it where it is', 'but do not move it')
STAY = ('and leave {x} where it is', 'but do not move {x}')
THEN = (', then ', ' and then ', ', after that ')


def say_mission(mission: Mission, rng: np.random.Generator) -> list[str]:
    """Return the parts of a mission in words; `''.join(...)` is the mission."""
    first = len(mission.parts) > 1 and rng.random() < 0.3
    said = [('first ' if first else '') + say_part(mission.parts[0], rng)]
    return [*said, *(any_of(rng, THEN) + say_part(part, rng) for part in mission.parts[1:])]


def say_part(part: Part, rng: np.random.Generator) -> str:
    """Return one part in words."""
    match part.kind:
        case 'take':
            words = _say_take(part, rng)
        case 'undo':
            words = any_of(rng, UNDO[part.steps])
        case 'say':
            thing = part.which.names[0] if part.which.names else ''
            question = any_of(rng, QUESTIONS[part.about])
            question = question.format(x=thing, y=part.place, at=_at(part.place))
            words = any_of(rng, SAY).format(q=question)
        case 'put' if part.which.but and not part.stay and rng.random() < 0.3:
            named = _the(part.which.but)
            rest = Part('put', _without(part.which), part.place)
            return f'{say_part(rest, rng)} {any_of(rng, STAY).format(x=named)}'
        case kind:
            forms = {'put': PUT, 'next': NEXT, 'push': PUSH, 'back': BACK}[kind]
            words = any_of(rng, forms).format(
                x=say_which(part.which, rng),
                y=part.place,
                side=part.side,
                into=_into(part.place),
            )
    if not part.stay:
        return words
    if part.stay == part.which.names and len(part.stay) == 1:
        return f'{words} {any_of(rng, STAY_IT)}'
    return f'{words} {any_of(rng, STAY).format(x=_the(part.stay))}'


def say_which(which: Which, rng: np.random.Generator) -> str:
    """Return things in words; names are in random order."""
    if which.names:
        words = _the([which.names[i] for i in rng.permutation(len(which.names))])
    elif which.colour:
        words = any_of(rng, NOT_OF_COLOUR if which.other else OF_COLOUR).format(w=which.colour)
    elif which.shape:
        words = any_of(rng, NOT_OF_SHAPE if which.other else OF_SHAPE).format(w=which.shape)
    elif which.place:
        words = any_of(rng, LYING).format(at=_at(which.place))
    else:
        words = any_of(rng, EVERYTHING)
    if which.but:
        words = f'{words} {any_of(rng, BUT)} {_the(which.but)}'
    return words


def _say_take(part: Part, rng: np.random.Generator) -> str:
    which = part.which
    if not which.place:
        return f'put {say_which(which, rng)} on the table'
    if which == Which(place=which.place) and rng.random() < 0.5:
        return any_of(rng, CLEAR).format(y=which.place)
    if which == Which(place=which.place):
        return f'put {say_which(which, rng)} on the table'
    within = say_which(_anywhere(which), rng)
    return any_of(rng, TAKE).format(x=within, y=which.place, off=_off(which.place))


def _without(which: Which) -> Which:
    return Which(which.names, which.colour, which.shape, which.place, (), which.other)


def _anywhere(which: Which) -> Which:
    return Which(which.names, which.colour, which.shape, '', which.but, which.other)


def _the(names: Sequence[str]) -> str:
    named = [f'the {name}' for name in names]
    return ' and '.join([', '.join(named[:-1]), named[-1]] if len(named) > 1 else named)


def _is_bin(place: str) -> bool:
    return place.endswith('bin')


def _at(place: str) -> str:
    return f'{"in" if _is_bin(place) else "on"} the {place}'


def _into(place: str) -> str:
    return f'{"into" if _is_bin(place) else "on"} the {place}'


def _off(place: str) -> str:
    return f'{"out of" if _is_bin(place) else "off"} the {place}'


def every_phrase() -> list[str]:
    """Return all templates, for the vocabulary."""
    return [
        *(*OF_COLOUR, *OF_SHAPE, *NOT_OF_COLOUR, *NOT_OF_SHAPE, *EVERYTHING, *LYING, *BUT),
        *(*PUT, *CLEAR, *TAKE, *NEXT, *PUSH, *BACK, *UNDO[1], *UNDO[2], *UNDO[3], *SAY),
        *(words for forms in QUESTIONS.values() for words in forms),
        *(*STAY_IT, *STAY, *THEN, f'first put {TABLE}'),
    ]
