"""A small fleet for tests of `benchmarks.whole`: tiny models, and unit costs of a round figure."""

from contextlib import ExitStack
from dataclasses import replace
from unittest.mock import patch

from benchmarks.mission.cases import scene
from benchmarks.whole import mind, voices
from benchmarks.whole.costs import Costs, PlannerCosts, PolicyCosts
from benchmarks.whole.group import Group
from benchmarks.whole.robot import FleetRobot
from benchmarks.whole.settings import load_settings
from benchmarks.whole.ways import WAYS
from embodied_kv.config import TINY, BackboneConfig
from embodied_kv.demo.sim.tabletop import Tabletop
from embodied_kv.model.planner import PlannerConfig
from embodied_kv.model.planner_checkpoint import random_planner
from embodied_kv.model.policy import Policy

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
)
COSTS = Costs(
    PolicyCosts(
        prefill=dict(whole={1: 0.003}, compressed={1: 0.004}),
        euler_step={1: 0.001},
        begin=0.001,
        choice=0.002,
        decode=dict(whole={1: 0.001, 8: 0.004}, compressed={1: 0.001, 8: 0.002}),
    ),
    PlannerCosts(layer_token=1e-5, loaded_token=5e-6, unit=0.001, answer_token=0.002),
    snapshot=0.002,
    restore=0.001,
)


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
        given = (
            replace(settings, rules=True),
            tables,
            POLICY,
            PLANNER,
            COSTS,
            folder / 'prepared',
            folder / 'run',
        )
        return Group(group, WAYS[way], *given).run()
