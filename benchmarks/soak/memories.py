"""What may happen to memory: told, corrected, forgotten, aged, asked, planned with.

Knows planning with memory. Does not know files, frames or capsules.
"""

from __future__ import annotations

from random import Random

from benchmarks.soak.outcome import DeclinedError, must_refuse
from benchmarks.soak.world import World
from embodied_kv.planning.planner_row import METHODS

THINGS = [f'thing {number}' for number in range(10)]
PLACES = ('on the left table', 'in the blue bin', 'in the gripper', 'gone')
QUESTION = 'where is thing 3?'


def tell(world: World, random: Random) -> None:
    """Segments that are new, other, or as they were."""
    things = random.sample(THINGS, random.randint(1, 3))
    world.planning.upsert(*((t, 'object', f'{t}: {random.choice(PLACES)}') for t in things))


def impossible_segment(world: World, random: Random) -> None:
    """Of no kind, too long, without words, or twice."""
    fine = ('thing 0', 'object', 'thing 0: here')
    odd = random.choice(
        [
            [('thing 1', 'mood', 'good')],
            [('thing 1', 'object', 'far ' * 500)],
            [('thing 1', 'object', ' ')],
            [('', 'object', 'nothing')],
            [fine, fine],
        ]
    )
    must_refuse(lambda: world.planning.upsert(*odd))


def forget(world: World, random: Random) -> None:
    """A segment goes."""
    known = world.planning.memory.store.list()
    if not known:
        raise DeclinedError('nothing is known')
    world.planning.remove(random.choice(known).id)


def age(world: World, random: Random) -> None:
    """The world goes on; groups turn static."""
    world.planning.advance(random.randint(0, 3))


def query(world: World, random: Random) -> None:
    """What is near to a question, and memory in numbers."""
    world.planning.query(random.choice((QUESTION, '')), 4)
    world.planning.stats()


def plan(world: World, random: Random) -> None:
    """An answer with memory in view, by any method."""
    tokens = random.choice((None, 40, 90))
    made = world.planning.plan(QUESTION, tokens, method=random.choice(list(METHODS)))
    assert made.memory <= 160, f'{made.memory} tokens of memory are in view'


def warm(world: World, random: Random) -> None:
    """KV that is missing, ahead of the next plan."""
    world.planning.warm(2)


def impossible_plan(world: World, random: Random) -> None:
    """No question, one that is too long, or an unknown method."""
    odd = random.choice((dict(question=' '), dict(question='why ' * 200), dict(method='magic')))
    must_refuse(lambda: world.planning.plan(**dict(question=QUESTION) | odd))
