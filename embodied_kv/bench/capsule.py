"""Restored state beside recomputed state: first token, first action, bandwidth, working sets.

Prefixes: a cold prefill of prefix and question, and a restore of the prefix and an append of the
question, in turn. Actions: prefill and denoising, and a replay of the frozen frame. Working sets:
contexts are visited in a cycle, from pinned capsules and from an LRU cache of whole contexts.
That both ways end in the same bytes is asserted on every run.

Physics: a cold prefill computes twice the weights for every token, and attention over all tokens
before it: it grows with the prefix. A restore moves the capsule's bytes once, a few MB, and an
append folds a number of tokens that does not depend on the prefix: it hardly grows. A cycle
through more contexts than fit is the worst case of an LRU: each is gone when its turn comes.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from embodied_kv.bench import capsule_planner, capsule_policy, report, scene
from embodied_kv.bench.capsule_figures import MB, Stores, peak_mb
from embodied_kv.bench.capsule_plot import plot
from embodied_kv.config import EngineConfig, preset
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.planner import PlannerPart
from embodied_kv.model.dtype import served
from embodied_kv.model.hybrid import HybridPlanner
from embodied_kv.model.hybrid_config import HybridConfig, planner_preset
from embodied_kv.model.hybrid_weights import random_hybrid


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    prefixes: repeats by length. context: tokens of each context. sets: sizes of working sets.
    kept: contexts that the bounded stores have bytes for. rounds: through a working set. actions,
    copied: repeats. rows: presets whose frame rows are copied.
    """

    prefixes: Mapping[int, int]
    context: int
    sets: tuple[int, ...]
    kept: int
    rounds: int
    actions: int
    copied: int
    rows: tuple[str, ...]


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


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument('--preset', default='pi05_small')
    parser.add_argument('--planner', default='planner_small')
    parser.add_argument('--quick', action='store_true', help='two prefixes, few contexts')
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--json', action='store_true', help='no table, only the line')
    return parser.parse_args()


def measure(engine: Engine, c: HybridConfig, plan: Plan, device: str) -> dict:
    """Every figure: `prefixes`, `copies`, `working_sets`, `action` and `memory`."""
    planner = HybridPlanner(c, random_hybrid(c, device=device))
    memory = dict(
        policy_mb=_bytes(engine.policy.model) / MB,
        planner_mb=_bytes(planner.model) / MB,
        at_start=peak_mb(device),
    )
    stores = Stores(engine, PlannerPart(planner), device)
    prefixes = [
        capsule_planner.prefix(planner, stores, length, repeats, plan.copied)
        for length, repeats in plan.prefixes.items()
    ]
    sets = capsule_planner.working_sets(
        planner, stores, plan.context, plan.sets, plan.kept, plan.rounds
    )
    stores = Stores(engine, device=device)
    action = capsule_policy.first_action(engine, stores, plan.actions)
    memory['at_end'] = peak_mb(device)
    copies = [
        dict(of=f'{prefix["length"]} tokens', **row)
        for prefix in prefixes
        for row in prefix.pop('copies')
    ]
    copies += [
        dict(of=f'row of {name}', **row)
        for name in plan.rows
        for row in capsule_policy.rows(name, engine.config, plan.copied)
    ]
    return dict(prefixes=prefixes, copies=copies, working_sets=sets, action=action, memory=memory)


def _bytes(model: torch.nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


def show(found: dict, plan: Plan, where: str) -> None:
    """Prints the tables."""
    past, question = capsule_planner.PAST, capsule_planner.QUESTION
    report.show(
        f'capsule: ms to first token, {where}',
        found['prefixes'],
        f'The boundary stands {past} tokens after `length`, which is a whole number of blocks; an '
        f'append folds these {past} again and a question of {question}.',
    )
    report.show(
        'capsule: snapshot and restore beside a plain copy of as many bytes',
        [{k: v for k, v in row.items() if 'clone' not in k} for row in found['copies']],
        "threads: of torch, an engine has one by default. engine: of the engine's thread.",
    )
    report.show(
        f'capsule: mean ms to first token, contexts of {plan.context + past} tokens in a cycle',
        [{k: v for k, v in row.items() if 'max' not in k} for row in found['working_sets']],
        f'pinned holds all; pinned_bounded and lru have bytes for {plan.kept} contexts. A miss is '
        'a cold prefill.',
    )
    report.show(
        'capsule: ms to first action',
        [found['action']],
        'cold: prefill and denoising. restored: the row of the frozen frame and denoising, for '
        'replay. A live action always needs a fresh observation, hence a prefill.',
    )


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    plan = PLANS['quick' if args.quick else 'full']
    engine = Engine(
        scene.FullPolicy.random(served(preset(args.preset), args.device), device=args.device),
        EngineConfig(
            rows=6,
            streams=2,
            tail_tokens=64,
            budget=False,
            min_euler_steps=10,
            threads=args.threads,
            device=args.device,
        ),
    )
    planner = served(planner_preset(args.planner), args.device)
    found = measure(engine, planner, plan, args.device)
    if not args.json:
        show(found, plan, f'{args.planner}, {args.preset}, {args.device}, {planner.dtype}')
        plot(found['prefixes'], found['copies'], found['working_sets'])
    report.save(
        'capsule',
        dict(
            bench='capsule',
            quick=args.quick,
            preset=args.preset,
            planner=args.planner,
            past=capsule_planner.PAST,
            question=capsule_planner.QUESTION,
            context=plan.context,
            kept=plan.kept,
            machine=report.machine(args.device),
            **found,
        ),
    )


if __name__ == '__main__':
    main()
