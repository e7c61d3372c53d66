"""What is measured of capsules, and how much of it; every figure.

Knows the planner's and the policy's measurements. Does not know tables or files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from embodied_kv.bench.capsule import planner as planners
from embodied_kv.bench.capsule import policy as policies
from embodied_kv.bench.capsule.figures import MB, Stores, peak_mb
from embodied_kv.bench.capsule.planner_rows import planner_rows
from embodied_kv.engine.engine import Engine
from embodied_kv.model.hybrid import HybridPlanner
from embodied_kv.model.hybrid_config import HybridConfig
from embodied_kv.model.hybrid_weights import random_hybrid
from embodied_kv.model.planner_checkpoint import bundled_planner, load_planner
from embodied_kv.model.planner_config import PLANNER_MISSIONS
from embodied_kv.session.planner_part import PlannerPart


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    prefixes: repeats by length. context: tokens of each context. sets: sizes of working sets.
    kept: contexts that the bounded stores have bytes for. rounds: through a working set. actions,
    copied: repeats. rows: presets whose frame rows are copied. segments: of memory in view of the
    planner whose row is brought back.
    """

    prefixes: Mapping[int, int]
    context: int
    sets: tuple[int, ...]
    kept: int
    rounds: int
    actions: int
    copied: int
    rows: tuple[str, ...]
    segments: tuple[int, ...] = (10, 40, 72)


PLANS = {
    'full': Plan(
        prefixes={256: 20, 512: 12, 1024: 9, 2048: 7, 4096: 5, 8192: 3},
        context=512, sets=(1, 2, 4, 8, 16), kept=4, rounds=1, actions=20, copied=25,
        rows=('pi05_small', 'pi05'),
    ),
    'quick': Plan(
        prefixes={256: 3, 1024: 2},
        context=128, sets=(1, 2, 4), kept=2, rounds=1, actions=3, copied=7,
        rows=('pi05_small', 'pi05'),
    ),
}  # fmt: skip


def measure(engine: Engine, c: HybridConfig, plan: Plan, device: str) -> dict:
    """Every figure: `prefixes`, `copies`, `working_sets`, `action`, `planner_rows`, `memory`."""
    planner = HybridPlanner(c, random_hybrid(c, device=device))
    memory = dict(
        policy_mb=_bytes(engine.policy.model) / MB,
        planner_mb=_bytes(planner.model) / MB,
        at_start=peak_mb(device),
    )
    stores = Stores(engine, PlannerPart(planner), device)
    prefixes = [
        planners.prefix(planner, stores, length, repeats, plan.copied)
        for length, repeats in plan.prefixes.items()
    ]
    sets = planners.working_sets(planner, stores, plan.context, plan.sets, plan.kept, plan.rounds)
    stores = Stores(engine, device=device)
    action = policies.first_action(engine, stores, plan.actions)
    rows = planner_rows(
        load_planner(bundled_planner(PLANNER_MISSIONS.name), device=device),
        plan.segments,
        plan.copied,
    )
    memory['at_end'] = peak_mb(device)
    copies = [
        dict(of=f'{prefix["length"]} tokens', **row)
        for prefix in prefixes
        for row in prefix.pop('copies')
    ]
    copies += [
        dict(of=f'row of {name}', **row)
        for name in plan.rows
        for row in policies.rows(name, engine.config, plan.copied)
    ]
    return dict(
        prefixes=prefixes,
        copies=copies,
        working_sets=sets,
        action=action,
        planner_rows=rows,
        memory=memory,
    )


def _bytes(model: torch.nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())
