"""A tiny planner with random weights, and a table of segments for its memory."""

import json

from embodied_kv.capsule.capsule import FrozenPart
from embodied_kv.config import BackboneConfig
from embodied_kv.model.planner import PlannerConfig
from embodied_kv.model.planner_checkpoint import random_planner
from embodied_kv.planning.config import PlanningConfig
from embodied_kv.planning.memory_part import MemoryPart
from embodied_kv.planning.planning import Planning

CONFIG = PlannerConfig('test', BackboneConfig(32, 4, 4, 2, 8, 48, 260), max_tokens=512)
LAYERS = CONFIG.backbone.layers
PLANNER = random_planner(CONFIG, seed=3)
TABLE = (
    ('red cube', 'object', 'red cube: on the left table'),
    ('blue bin', 'place', 'blue bin: open, on the left table'),
    ('green ball', 'object', 'green ball: in the blue bin'),
    ('robot', 'agent', 'robot: holds nothing'),
    ('task 1', 'task', 'task 1: put the green ball into the blue bin'),
)
QUESTION = 'where is the green ball?'
NUMBERS = dict(
    reuse_method='keep',
    max_context_tokens=400,
    max_answer_tokens=8,
    recompute_ratio=0.5,
    group_stable_steps=2,
    min_group_similarity=0.2,
)


def open_planning(folder, planner=PLANNER, **options):
    """Open a planning. options: arguments of `Planning`, or fields of its config."""
    own = {
        name: options.pop(name)
        for name in ('encoder', 'step', 'renew', 'kv_budget', 'rows')
        if name in options
    }
    return Planning(planner, folder, PlanningConfig(**NUMBERS | options), **own)


def filled(folder, **options):
    planning = open_planning(folder, **options)
    planning.upsert(*TABLE)
    return planning


def cut_off(folder, tokens, **options):
    """Freeze a plan after `tokens` tokens; return planning, frozen part and last plan."""
    taken = []

    def step(work):
        result = work()
        held = planning is not None and planning.row.held
        if held and not taken and len(held.plan.answer) >= tokens:
            taken.append(MemoryPart(planning).freeze())
        return result

    planning = None
    planning = filled(folder, step=step, **options)
    planning.plan(QUESTION)
    (frozen,) = taken
    facts = json.loads(json.dumps(frozen.facts))  # as read from a file
    return planning, FrozenPart(frozen.tensors, facts), planning.last


def said(plan):
    """Return what must be equal in two plans of the same memory."""
    return plan.text, plan.segments, plan.tokens, plan.computed, plan.loaded, plan.hops
