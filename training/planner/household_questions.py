"""Questions that a robot may be asked about its household, with answers and the facts behind them.

Hops are the links to follow from the things that a question names: the bowl that a cube is in, the
bin of that bowl. A question consists of words and names only, so that it can be asked of any
state, also of an earlier one, to find the outdated answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from training.planner.household import ROBOT, Household, any_of, at, into, lidded

WORDS = {
    'where': 'Where is the {x}?',
    'table': 'Which table is the {x} on?',
    'lid': 'Is the {y} open?',
    'held': 'What does the robot hold?',
    'last': 'What was last put {into}?',
    'next': 'Next step to put the {x} {into}?',
}
KINDS = tuple(WORDS)
NEXT = ('done', 'put down the {x}', 'open the {x}', 'put the {x} {into}', 'pick the {x}')


@dataclass(frozen=True)
class Question:
    """kind: one of KINDS. thing: subject; place: a receptacle; '' where none is named."""

    kind: str
    thing: str = ''
    place: str = ''

    @property
    def text(self) -> str:
        return WORDS[self.kind].format(x=self.thing, y=self.place, into=into(self.place))


@dataclass(frozen=True)
class Answer:
    """text: the correct answer. needs: ids of the facts that determine it, by hops, 0 first.

    needs are all facts without which the answer could be another one.
    """

    text: str
    needs: tuple[tuple[str, ...], ...]

    @property
    def hops(self) -> int:
        return len(self.needs) - 1

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(id for ids in self.needs for id in ids)


def answer(question: Question, household: Household) -> Answer | None:
    """Return the correct answer, or None if the state does not have what is asked about."""
    names = {name for name in (question.thing, question.place) if name}
    if not names <= household.where.keys():
        return None
    return _TRUTHS[question.kind](household, question)


def was(question: Question, states: Sequence[Household]) -> str | None:
    """Return the answer before the last update that changed it, or None if none did.

    states: from old to new.
    """
    answers = [found.text for state in states if (found := answer(question, state))]
    return next((text for text in reversed(answers) if text != answers[-1]), None)


def _where(household: Household, question: Question) -> Answer:
    return Answer(at(household.where[question.thing]), ((question.thing,),))


def _table(household: Household, question: Question) -> Answer:
    around = household.around(question.thing)
    chain = ((name,) for name in (question.thing, *around[:-1]))
    last = around[-1]
    return Answer(at(last) if last == ROBOT else f'the {last}', tuple(chain))


def _lid(household: Household, question: Question) -> Answer:
    return Answer('yes' if question.place in household.open else 'no', ((question.place,),))


def _held(household: Household, question: Question) -> Answer:
    return Answer(f'the {household.held}' if household.held else 'nothing', ((ROBOT,),))


def _last(household: Household, question: Question) -> Answer | None:
    if question.place not in household.last:
        return None
    number = household.last[question.place]
    return Answer(
        f'the {household.tasks[number][0]}', ((f'last {question.place}',), (f'task {number}',))
    )


def _next(household: Household, question: Question) -> Answer:
    """Return `done`, or the next step: free the hands, open lids, then pick or put.

    The lids of the thing come before those of the place. Source: the order of ALFRED's experts.
    """
    x, y, held = question.thing, question.place, household.held
    if household.where[x] == y:
        return Answer('done', ((x,),))
    if held and held != x:
        return Answer(f'put down the {held}', ((x, ROBOT),))
    outside = [(x, ROBOT), *((name,) for name in household.around(x) if name in household.where)]
    if lid := household.lid(x):
        return Answer(f'open the {lid}', tuple(outside))
    beside = [(name,) for name in (y, *household.around(y)) if name in household.where]
    depth = max(len(outside), len(beside))
    padded = (side + [()] * (depth - len(side)) for side in (outside, beside))
    needs = tuple(a + b for a, b in zip(*padded, strict=True))
    if lid := household.lid(y):
        return Answer(f'open the {lid}', needs)
    return Answer(f'put the {x} {into(y)}' if held else f'pick the {x}', needs)


_TRUTHS: dict[str, Callable[[Household, Question], Answer | None]] = {
    'where': _where,
    'table': _table,
    'lid': _lid,
    'held': _held,
    'last': _last,
    'next': _next,
}


def all_questions(household: Household) -> list[Question]:
    """Return every question that the state answers, by kind."""
    objects, places = household.objects, household.receptacles
    return [
        *(Question('where', x) for x in (*objects, *(y for y in places if not lidded(y)))),
        *(Question('table', x) for x in household.where),
        *(Question('lid', place=y) for y in places if lidded(y)),
        Question('held'),
        *(Question('last', place=y) for y in household.last),
        *(Question('next', x, y) for x in objects for y in places),
    ]


def draw_question(
    rng: np.random.Generator, household: Household, kind: str | None = None
) -> Question:
    """Draw a question that the state answers, of a kind or of any.

    For `table` each number of links that occurs is equally likely. For `next` the robot often
    holds the thing already, and some tasks are done. If nothing has been put anywhere, `last`
    becomes `held`.
    """
    kind = kind or any_of(rng, KINDS)
    lids = [name for name in household.receptacles if lidded(name)]
    if kind == 'where':
        return Question(kind, any_of(rng, [name for name in household.where if name not in lids]))
    if kind == 'table':
        links = {name: len(household.around(name)) for name in household.where}
        wanted = any_of(rng, sorted(set(links.values())))
        return Question(kind, any_of(rng, [name for name, n in links.items() if n == wanted]))
    if kind == 'lid':
        return Question(kind, place=any_of(rng, lids))
    if kind == 'last' and household.last:
        return Question(kind, place=any_of(rng, list(household.last)))
    if kind != 'next':
        return Question('held')
    thing, held = any_of(rng, household.objects), household.held
    if held and rng.random() < 0.6:
        thing = held
    place = household.where[thing]
    if place not in household.receptacles or rng.random() < 0.85:
        place = any_of(rng, household.receptacles)
    return Question(kind, thing, place)
