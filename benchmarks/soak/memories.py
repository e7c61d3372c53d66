"""Operations on memory: add, correct, remove, advance, query, plan, and impossible requests.

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
    """Add or change segments, or write them unchanged."""
    things = random.sample(THINGS, random.randint(1, 3))
    world.planning.upsert(*((t, 'object', f'{t}: {random.choice(PLACES)}') for t in things))


def impossible_segment(world: World, random: Random) -> None:
    """Add segments of an unknown kind, too long, empty, without an id, or the same one twice."""
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
    """Remove a segment."""
    known = world.planning.memory.store.list()
    if not known:
        raise DeclinedError('nothing is known')
    world.planning.remove(random.choice(known).id)


def age(world: World, random: Random) -> None:
    """Advance the world step, by which groups turn static."""
    world.planning.advance(random.randint(0, 3))


def query(world: World, random: Random) -> None:
    """Query the segments nearest to a question, and the statistics."""
    world.planning.query(random.choice((QUESTION, '')), 4)
    world.planning.stats()


def plan(world: World, random: Random) -> None:
    """Plan with memory in view, by any method."""
    tokens = random.choice((None, 40, 90))
    made = world.planning.plan(QUESTION, tokens, method=random.choice(list(METHODS)))
    assert made.memory <= 160, f'{made.memory} tokens of memory are in view'


def warm(world: World, random: Random) -> None:
    """Compute missing KV ahead of the next plan."""
    world.planning.warm(2)


def impossible_plan(world: World, random: Random) -> None:
    """Plan with an empty or too long question, or an unknown method."""
    odd = random.choice((dict(question=' '), dict(question='why ' * 200), dict(method='magic')))
    must_refuse(lambda: world.planning.plan(**dict(question=QUESTION) | odd))
