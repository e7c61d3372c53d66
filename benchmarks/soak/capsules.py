"""What may happen to sessions and capsules: frozen, resumed, forked, moved, pinned, dropped.

Knows the verbs of a session and the registry. Does not know what is in a capsule.
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
    """A session as it is, into any tier, under a name that may be in use."""
    robot, name = random.choice(ROBOTS), random.choice((*NAMES, ''))
    seen = _scene(random, robot) if random.random() < 0.8 else None
    world.sessions[robot].snapshot(name, seen, random.choice(list(Tier)))


def restore(world: World, random: Random) -> None:
    """As deep as the present allows."""
    robot = random.choice(ROBOTS)
    seen = replace(_scene(random, robot), stamp=2 * 10**9) if random.random() < 0.8 else None
    world.sessions[robot].restore(_name(world, random), seen)


def rollback(world: World, random: Random) -> None:
    """To a boundary of this session, or to the newest there is."""
    _session(world, random).rollback(random.choice(('', _name(world, random))))


def fork(world: World, random: Random) -> None:
    """The streams of a capsule go on once more, and differ by seed."""
    branches = [Branch(random.choice((None, 5))) for _ in range(random.randint(1, 3))]
    _session(world, random).fork(_name(world, random), branches)


def replay(world: World, random: Random) -> None:
    """The chunk of a capsule's frame, made again."""
    _session(world, random).replay(_name(world, random))


def load(world: World, random: Random) -> None:
    """A capsule is looked at, from wherever it lies."""
    world.registry.get(_name(world, random), random.choice(list(Tier)))


def move(world: World, random: Random) -> None:
    """To another tier, and others for it."""
    world.registry.move(_name(world, random), random.choice(list(Tier)))


def pin(world: World, random: Random) -> None:
    """It stays where it is; few do."""
    if sum(entry.pinned for entry in world.registry.entries()) < 3:
        world.registry.pin(_name(world, random))


def unpin(world: World, random: Random) -> None:
    """It may give way again."""
    world.registry.pin(_name(world, random), pinned=False)


def drop(world: World, random: Random) -> None:
    """A capsule is given up, in all tiers."""
    world.registry.drop(_name(world, random))


def impossible_capsule(world: World, random: Random) -> None:
    """A name that there is not, or that none can have."""
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
    """What a robot sees: the same, or something else."""
    light = random.choice((100, 100, 104, 180))
    image = thumbnail(np.full((28, 28, 3), light, np.uint8))
    return SceneSummary(np.zeros(7), {'front': image}, 10**9, robot)
