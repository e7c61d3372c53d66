"""The amount of measurement of capsules, and all figures.

Knows the planner's and the policy's measurements. Does not know tables or files. The measurements
of the policy run with every version of transformers that the package supports. Those of the hybrid
planner need the cache interface of a newer version; without it they are left out, and `no_hybrid`
gives the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import transformers

from benchmarks.capsule import planner as planners
from benchmarks.capsule import policy as policies
from benchmarks.capsule.figures import MB, Stores, peak_mb
from benchmarks.capsule.planner_rows import planner_rows
from benchmarks.capsule.sentences import snapshots
from benchmarks.common.report import ceilings
from benchmarks.hybrid.config import HybridConfig
from embodied_kv.engine.engine import Engine
from embodied_kv.model.planner import PLANNER_MISSIONS
from embodied_kv.model.planner_checkpoint import bundled_planner, load_planner

if TYPE_CHECKING:  # not every version of transformers can run it
    from benchmarks.hybrid.planner import HybridPlanner

READ = 'get_conv_state', 'get_recurrent_state'  # cache methods that transformers' layers read


@dataclass(frozen=True)
class Plan:
    """The amount of measurement.

    prefixes: repeats by length. context: tokens of each context. sets: sizes of working sets.
    kept: contexts that the bounded stores have bytes for. rounds: passes through a working set.
    actions, copied: repeats. rows: presets whose frame rows are copied. segments: of memory, in
    view of the planner whose row is restored. sentences: that a session remembers.
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
    sentences: tuple[int, ...] = (1000, 100_000)


PLANS = {
    'full': Plan(
        prefixes={256: 20, 512: 12, 1024: 9, 2048: 7, 4096: 5, 8192: 5},
        context=512, sets=(1, 2, 4, 8, 16), kept=4, rounds=1, actions=20, copied=25,
        rows=('pi05_small', 'pi05'),
    ),
    'quick': Plan(
        prefixes={256: 3, 1024: 2},
        context=128, sets=(1, 2, 4), kept=2, rounds=1, actions=3, copied=7,
        rows=('pi05_small', 'pi05'),
    ),
}  # fmt: skip


def no_hybrid() -> str:
    """Return why the installed transformers cannot run the hybrid planner; '' where it can."""
    cache, version = getattr(transformers, 'Cache', None), transformers.__version__
    lacks = [name for name in READ if not hasattr(cache, name)]
    if not lacks and hasattr(transformers, 'Qwen3_5ForCausalLM'):
        return ''
    return f'transformers must be 5.22 or newer for it (got {version})'


def measure(engine: Engine, c: HybridConfig, plan: Plan, device: str) -> dict:
    """Return every figure.

    `prefixes`, `copies`, `working_sets`, `action`, `planner_rows`, `sentences`, `memory`;
    `no_hybrid`: why the hybrid planner was left out, '' where it was not.
    """
    memory = dict(policy_mb=_bytes(engine.policy.model) / MB, at_start=peak_mb(device))
    why = no_hybrid()
    hybrid = dict(prefixes=[], working_sets=[], copies=[])
    if not why:
        hybrid = _hybrid(engine, c, plan, device)
        memory['planner_mb'] = hybrid.pop('planner_mb')
    stores = Stores(engine, device=device)
    action = policies.first_action(engine, stores, plan.actions)
    over_memory = load_planner(bundled_planner(PLANNER_MISSIONS.name), device=device)
    rows = planner_rows(over_memory, plan.segments, plan.copied)
    sentences = snapshots(engine, over_memory, plan.sentences, plan.copied, device)
    memory['at_end'] = peak_mb(device)
    copies = hybrid.pop('copies') + [
        dict(of=f'row of {name}', **row)
        for name in plan.rows
        for row in policies.rows(name, engine.config, plan.copied)
    ]
    found = dict(action=action, planner_rows=rows, sentences=sentences, memory=memory)
    return dict(**hybrid, copies=copies, **found, no_hybrid=why)


def first_tokens(engine: Engine, c: HybridConfig, plan: Plan, device: str) -> dict:
    """Return `prefixes` and `no_hybrid` as `measure`, and nothing else."""
    if why := no_hybrid():
        return dict(prefixes=[], no_hybrid=why)
    prefixes = _prefixes(*_planner(engine, c, device), plan)
    for row in prefixes:
        row.pop('copies')
    return dict(prefixes=prefixes, no_hybrid='')


def _hybrid(engine: Engine, c: HybridConfig, plan: Plan, device: str) -> dict:
    """Return the figures of the hybrid planner: prefixes, their copies, working sets, its size."""
    planner, stores = _planner(engine, c, device)
    prefixes = _prefixes(planner, stores, plan)
    sets = planners.working_sets(planner, stores, plan.context, plan.sets, plan.kept, plan.rounds)
    copies = [
        dict(of=f'{prefix["length"]} tokens', **row)
        for prefix in prefixes
        for row in prefix.pop('copies')
    ]
    size = _bytes(planner.model) / MB
    return dict(prefixes=prefixes, working_sets=sets, copies=copies, planner_mb=size)


def _planner(engine: Engine, c: HybridConfig, device: str) -> tuple[HybridPlanner, Stores]:
    """Return a planner of random weights, and capsules of the engine that contain its state."""
    from benchmarks.hybrid.part import PlannerPart
    from benchmarks.hybrid.planner import HybridPlanner
    from benchmarks.hybrid.weights import random_hybrid

    planner = HybridPlanner(c, random_hybrid(c, device=device))
    return planner, Stores(engine, PlannerPart(planner), device)


def _prefixes(planner: HybridPlanner, stores: Stores, plan: Plan) -> list[dict]:
    rate = ceilings(planner.model.dtype, stores.device)['gflops']
    return [
        planners.prefix(planner, stores, length, repeats, plan.copied, rate)
        for length, repeats in plan.prefixes.items()
    ]


def _bytes(model: torch.nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())
