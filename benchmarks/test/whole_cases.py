"""A small fleet for tests of `benchmarks.whole`: tiny models and a clock that ticks when read."""

from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from unittest.mock import patch

from benchmarks.mission.cases import scene
from benchmarks.whole import mind, voices
from benchmarks.whole.group import Group
from benchmarks.whole.robot import FleetRobot
from benchmarks.whole.settings import load_settings
from benchmarks.whole.ways import WAYS
from embodied_kv.config import TINY, BackboneConfig
from embodied_kv.demo.sim.tabletop import Tabletop
from embodied_kv.fleet.profile import Profile
from embodied_kv.model.planner import PlannerConfig
from embodied_kv.model.planner_checkpoint import random_planner
from embodied_kv.model.policy import Policy

TICK = 0.002  # s
PLANNER = random_planner(
    PlannerConfig('test', BackboneConfig(32, 4, 4, 2, 8, 48, 260), max_tokens=1280), seed=3
)
POLICY = Policy.random(TINY, seed=1)
SETTINGS = replace(
    load_settings(quick=True),
    mission_seconds=2.5,
    step_seconds=0.6,
    ask_every=0.2,
    kill=(1.1, 1.2),
    euler_steps=4,
    capsule_interval=0.2,
    prompt_interval_frames=2,
    chunk_seconds=0.02,
)
PROFILE = Profile('test', (1,), (0.02,), 9)


def ticks():
    """Return a clock of work (s) that advances by TICK each time it is read."""
    looks = count()
    return lambda: next(looks) * TICK


class Blind(FleetRobot):
    """A robot that sends all scene queries and ignores the answers, as weights are random."""

    def _remember(self, seen):
        pass


def run(way, folder, group=0, settings=SETTINGS, robot=Blind):
    """Run a group of missions in a way; the plans are those of the rules, not of the planner."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(mind, 'FleetRobot', robot))
        for kind, most in (('QUESTION', 4), ('PROMPT', 3)):  # random weights generate no end token
            stack.enter_context(patch.object(voices, kind, most))
        tabletop = scene(TINY.vision.image_size)
        tables = [stack.enter_context(Tabletop(tabletop)) for _ in range(settings.robots)]
        given = settings, tables, POLICY, PLANNER, PROFILE, ticks(), True, folder
        return Group(group, WAYS[way], *given).run()
