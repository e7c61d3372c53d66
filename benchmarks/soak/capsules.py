"""Operations on sessions and capsules: snapshot, restore, fork, replay, move, pin and drop.

Knows the verbs of a session and the registry. Does not know the content of a capsule.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np

from benchmarks.soak.outcome import DeclinedError, must_refuse
from benchmarks.soak.world import ROBOTS, World
from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.reentry import SceneSummary, thumbnail
from embodied_kv.capsule.tiers import Tier
from embodied_kv.session.engine_part import Branch
from embodied_kv.session.robot_session import RobotSession

NAMES = [f'c{number}' for number in range(16)]


def snapshot(world: World, random: Random) -> None:
    """Take a snapshot of a session into any tier, under a name that may be in use."""
    robot, name = random.choice(ROBOTS), random.choice((*NAMES, ''))
    seen = _scene(random, robot) if random.random() < 0.8 else None
    world.sessions[robot].snapshot(name, seen, random.choice(list(Tier)))


def restore(world: World, random: Random) -> None:
    """Restore a capsule as deep as the present scene allows."""
    robot = random.choice(ROBOTS)
    seen = replace(_scene(random, robot), stamp=2 * 10**9) if random.random() < 0.8 else None
    world.sessions[robot].restore(_name(world, random), seen)


def rollback(world: World, random: Random) -> None:
    """Roll back to a boundary, which may be of another session, or to the newest one."""
    _session(world, random).rollback(random.choice(('', _name(world, random))))


def fork(world: World, random: Random) -> None:
    """Resume the streams of a capsule once more for each branch, with different seeds."""
    branches = [Branch(random.choice((None, 5))) for _ in range(random.randint(1, 3))]
    _session(world, random).fork(_name(world, random), branches)


def replay(world: World, random: Random) -> None:
    """Compute the chunk of a capsule's frame again."""
    _session(world, random).replay(_name(world, random))


def load(world: World, random: Random) -> None:
    """Load a capsule from its tier."""
    world.registry.get(_name(world, random), random.choice(list(Tier)))


def move(world: World, random: Random) -> None:
    """Move a capsule to another tier, and others out of its way."""
    world.registry.move(_name(world, random), random.choice(list(Tier)))


def pin(world: World, random: Random) -> None:
    """Pin a capsule, unless three are pinned."""
    if sum(entry.pinned for entry in world.registry.entries()) < 3:
        world.registry.pin(_name(world, random))


def unpin(world: World, random: Random) -> None:
    """Allow the eviction of a capsule again."""
    world.registry.pin(_name(world, random), pinned=False)


def drop(world: World, random: Random) -> None:
    """Drop a capsule from all tiers."""
    world.registry.drop(_name(world, random))


def impossible_capsule(world: World, random: Random) -> None:
    """Use a name that does not exist or is invalid, or fork without branches."""
    session = _session(world, random)
    odd = random.choice(
        [
            lambda: session.restore('nobody', None),
            lambda: session.snapshot('../out', None),
            lambda: session.fork('nobody', [Branch()]),
            lambda: session.fork(_name(world, random), []),
            lambda: world.registry.move('nobody', Tier.DISK),
        ]
    )
    must_refuse(odd, CapsuleError)


def _session(world: World, random: Random) -> RobotSession:
    return world.sessions[random.choice(ROBOTS)]


def _name(world: World, random: Random) -> str:
    entries = world.registry.entries()
    if not entries:
        raise DeclinedError('there is no capsule')
    return random.choice(entries).name


def _scene(random: Random, robot: str) -> SceneSummary:
    """Return a scene with the same image as before, or with another one."""
    light = random.choice((100, 100, 104, 180))
    image = thumbnail(np.full((28, 28, 3), light, np.uint8))
    return SceneSummary(np.zeros(7), {'front': image}, 10**9, robot)
