"""The planner of the heavy mode, a stand-in for it, and the memory of a household.

The planner has 40 million random parameters, because none of that size is trained. A stand-in with
the same layers and the same KV, but hardly any other weights, retrieves, loads and selects for it;
each plan is charged the unit costs of the planner.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.mission.__main__ import PLANNER
from embodied_kv.config import BackboneConfig
from embodied_kv.demo.sim.scene import COLOURS
from embodied_kv.demo.sim.tasks import Task
from embodied_kv.model.planner import PlannerConfig
from embodied_kv.model.planner_checkpoint import (
    LoadedPlanner,
    bundled_planner,
    load_planner,
    random_planner,
)
from training.planner.simulated_table import OBJECT_NAMES, Fact

LARGE = PlannerConfig(
    'large', BackboneConfig(512, 12, 8, 2, 64, 2048, 640, rope_theta=1e7), max_tokens=4096
)
STAND_IN = replace(
    LARGE, name='stand-in', backbone=replace(LARGE.backbone, width=32, heads=2, mlp=32)
)


def untrained(config: PlannerConfig) -> LoadedPlanner:
    """Return a planner with random weights and the tokens of the bundled planner."""
    return random_planner(config, load_planner(bundled_planner(PLANNER)).tokenizer, seed=1)


def household(segments: int) -> list[Fact]:
    """Return tasks of earlier days, which no mission is about."""
    rng = np.random.default_rng(segments)
    found = []
    for number in range(segments):
        task = Task('put', str(rng.choice(OBJECT_NAMES)), f'{rng.choice([*COLOURS])} bin')
        text = f'day {number // 20 + 1}: {task.phrase(0)}'
        found.append(Fact(f'day {number}', 'note', text))
    return found
