"""Restored compared with recomputed state: first token, first action, bandwidth, working sets.

- Prefixes: cold prefills of prefix and question, in calls of a block and of 512 tokens, and a
  restore of the prefix followed by an append of the question, in turn.
- Actions: prefill and denoising, and a replay of the frozen frame.
- Working sets: contexts are visited in a cycle, from pinned capsules and from an LRU cache of
  whole contexts.
- Planner rows: the prompt of the planner over memory is restored, or computed again by KEEP.
- Sentences: a snapshot of a session that remembers many sentences.

Every run asserts that both ways end in the same bytes.

Physics: a cold prefill takes two operations per weight and token, and attention over all tokens
before it, so it grows with the prefix. A restore moves the capsule's bytes once (a few MB), and an
append folds a number of tokens that does not depend on the prefix, so it hardly grows. A cycle
through more contexts than fit is the worst case of an LRU cache: each context is evicted before
its turn comes.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch

from benchmarks.capsule.measure import PLANS, Plan, first_tokens, measure
from benchmarks.capsule.planner import FULL_BLOCK, PAST, QUESTION
from benchmarks.capsule.plot import plot
from benchmarks.capsule.sentences import snapshots
from benchmarks.common import report
from benchmarks.common.command import add_engine, command
from benchmarks.common.scene import FullPolicy
from benchmarks.hybrid.config import planner_preset
from embodied_kv.config import preset
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.dtype import served
from embodied_kv.model.planner import PLANNER_MISSIONS
from embodied_kv.model.planner_checkpoint import bundled_planner, load_planner

REPEATS = 3  # of a prefix that the plan does not have


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_engine(parser)
    parser.add_argument('--planner', default='planner_small', help='dimensions of the planner')
    parser.add_argument('--quick', action='store_true', help='two prefixes, few contexts')
    parser.add_argument(
        '--first-token',
        type=int,
        nargs='+',
        help='measure only the first token after prefixes of so many tokens',
    )
    parser.add_argument(
        '--sentences', type=int, nargs='+', help='measure only snapshots of so many sentences'
    )


def run(args: argparse.Namespace) -> dict:
    """Measure, print the tables, and return all figures."""
    torch.set_num_threads(args.threads)
    plan = PLANS['quick' if args.quick else 'full']
    engine = Engine(
        FullPolicy.random(served(preset(args.preset), args.device), device=args.device),
        EngineConfig(
            rows=6,
            streams=2,
            decode_tokens=64,
            time_budget=False,
            min_euler_steps=10,
            threads=args.threads,
            device=args.device,
        ),
    )
    if args.sentences:
        over_memory = load_planner(bundled_planner(PLANNER_MISSIONS.name), device=args.device)
        rows = snapshots(engine, over_memory, args.sentences, plan.copied, args.device)
        if not args.json:
            show_sentences(rows)
        return dict(preset=args.preset, repeats=plan.copied, sentences=rows)
    planner = served(planner_preset(args.planner), args.device)
    where = f'{args.planner}, {args.preset}, {args.device}, {planner.dtype}'
    if args.first_token:
        prefixes = {length: plan.prefixes.get(length, REPEATS) for length in args.first_token}
        found = first_tokens(engine, planner, replace(plan, prefixes=prefixes), args.device)
        if found['prefixes'] and not args.json:
            show_first_tokens(found['prefixes'], where)
        return dict(quick=args.quick, planner=args.planner, past=PAST, question=QUESTION, **found)
    found = measure(engine, planner, plan, args.device)
    if not args.json:
        show(found, plan, where)
        if found['prefixes']:
            plot(found['prefixes'], found['copies'], found['working_sets'])
    return dict(
        quick=args.quick,
        preset=args.preset,
        planner=args.planner,
        past=PAST,
        question=QUESTION,
        context=plan.context,
        kept=plan.kept,
        **found,
    )


def show(found: dict, plan: Plan, where: str) -> None:
    """Print the tables."""
    if found['no_hybrid']:
        print(f'without the hybrid planner: {found["no_hybrid"]}')
    else:
        show_hybrid(found, plan, where)
    report.show(
        'capsule: snapshot and restore beside a plain copy of as many bytes',
        [{k: v for k, v in row.items() if 'clone' not in k} for row in found['copies']],
        "threads: of torch, an engine has one by default. engine: of the engine's thread.",
    )
    report.show(
        'capsule: ms to first action',
        [found['action']],
        'cold: prefill and denoising. restored: the row of the frozen frame and denoising, for '
        'replay. A live action always needs a fresh observation, hence a prefill.',
    )
    report.show(
        "capsule: ms to the first token of a plan over memory, the package's planner",
        found['planner_rows'],
        'keep, full: computed again, from stored units and from text. restored, from disk: '
        'the row comes back, of which restore and snapshot are the copies.',
    )
    show_sentences(found['sentences'])


def show_sentences(rows: list[dict]) -> None:
    """Print the table of sessions that remember many sentences."""
    report.show(
        'capsule: ms of a snapshot of a session that remembers many sentences, median and least',
        rows,
        "engine: of the engine's thread. cpu: of a core. wait: the longest that another thread "
        'did not run. At 100,000 sentences the aims are 50 ms, and 2 ms of the engine.',
    )


def show_hybrid(found: dict, plan: Plan, where: str) -> None:
    """Print the tables of the hybrid planner."""
    show_first_tokens(found['prefixes'], where)
    report.show(
        f'capsule: mean ms to first token, contexts of {plan.context + PAST} tokens in a cycle',
        [{k: v for k, v in row.items() if 'max' not in k} for row in found['working_sets']],
        f'pinned holds all; pinned_bounded and lru have bytes for {plan.kept} contexts. A miss is '
        'a cold prefill.',
    )


def show_first_tokens(rows: list[dict], where: str) -> None:
    """Print the table of the first token after prefixes."""
    report.show(
        f'capsule: ms to first token, {where}',
        [{k: v for k, v in row.items() if 'p90' not in k} for row in rows],
        f'The boundary stands {PAST} tokens after `length`, which is a whole number of blocks; an '
        f'append folds these {PAST} again and a question of {QUESTION}. cold: in calls of a '
        f'block. full: in calls of {FULL_BLOCK} tokens. speedup, low, high: full over restored.',
    )


main = command('capsule', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
