"""Memory units that keep a part of their tokens: right answers by budget, and by what chooses.

Two tasks. Chains (`judge`): segments of two tokens, of which a unit keeps one. A household
(`trace`): sentences of about eight tokens, the package's planner. Both through the serving
prefill, by full reuse, which reads nothing but what is kept, and by KEEP, which reads what is kept
of the segments that it does not compute again. kept: % of the tokens of loaded segments.

Physics: bytes of stored KV, of its loads and of the row go down with what is dropped; what is
computed does not. A sentence of eight tokens has no filler to drop: each of its tokens says what,
or where.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from benchmarks.common import report
from benchmarks.common.command import command
from benchmarks.memory import tables
from benchmarks.memory.asking import Reply, ask_all, of
from benchmarks.memory.judge_ask import Asking, IsolatedKv, Problem, arena_of, problems
from benchmarks.memory.judge_ways import average
from benchmarks.memory.settings import load_settings
from benchmarks.memory.trace import add_arguments as add_trace
from benchmarks.memory.trace import begin
from benchmarks.memory.ways import KEEP, Way, answering
from embodied_kv.memory.keep import Keep
from embodied_kv.memory.reuse import Reuse
from embodied_kv.memory.schedule import named_schedule
from embodied_kv.model.planner import Planner
from embodied_kv.planning.compression import compress_unit, unit_attention, unit_method
from training.evaluate.report import rate
from training.judge.chains import LAYOUTS
from training.judge.exam import HOPS, draw_cell
from training.judge.file import JUDGE, SEEDS, bundled_judge, load_judge

SCORES = ('knorm', 'h2o', 'streaming_llm', 'random')
RATIOS = (0.75, 0.5, 0.25)
REUSE = (KEEP, 'full_reuse')
SCHEDULE = named_schedule('even', JUDGE.backbone.layers, average(0.16, JUDGE.backbone.layers))
SEGMENTS, SEED = 16, 5_000_011  # of a chain's memory; of problems that no other part has


class ThinKv(IsolatedKv):
    """The KV of a two-token segment, of which one token is kept. score: that chooses it."""

    def __init__(self, model: Planner, score: str) -> None:
        super().__init__(model)
        self._method = unit_method(score)

    def _compute(self, ids: list[int]) -> list[tuple[Tensor, Tensor]]:
        arena = arena_of(self._model, len(ids))
        arena.set_length(0, len(ids))
        columns = unit_attention(self._model, arena, ids, lambda work: work(), len(ids))
        k, v = (part[:, 0] for part in (arena.k, arena.v))
        k, v, _ = compress_unit(k, v, (len(ids),), columns, self._method, 0.5)
        return list(zip(k, v, strict=True))


def thin(problem: Problem) -> Problem:
    """The same, of whose segments one token each is stored."""
    pieces = tuple(replace(piece, stored=slice(0, 1)) for piece in problem.prompt.pieces)
    return replace(problem, prompt=replace(problem.prompt, pieces=pieces))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of this part."""
    add_trace(parser)
    parser.add_argument('--problems', type=int, default=20, help='of a layout, hops and a judge')
    parser.add_argument('--seeds', type=int, nargs='+', default=list(SEEDS), help='of judges')


def run(args: argparse.Namespace) -> dict:
    """Asks, prints the tables, and returns all figures."""
    result = begin(args)
    problems = min(args.problems, 4) if args.quick else args.problems
    chosen = args.seeds[:1] if args.quick else args.seeds
    result |= dict(judge=judge(chosen, problems), household=household(args))
    if not args.json:
        note = 'difference: to whole units, points, the same questions; least, most: 95% interval'
        title = f'chains of {SEGMENTS} segments, right answers, %: one token of two is kept'
        report.show(title, result['judge'])
        report.show(f'household, right answers, %, of {args.planner}', result['household'], note)
    return result


# ---------------------------------------------------------------------- chains


def judge(seeds: Sequence[int], count: int) -> list[dict]:
    """A row per way of reuse and what chooses, a column per number of links."""
    right: dict[tuple[str, str], dict[int, list[bool]]] = {}
    for seed in seeds:
        model = load_judge(bundled_judge(seed))
        askings = {'all': Asking(model)}
        askings |= {score: Asking(model, ThinKv(model, score)) for score in SCORES}
        for hops in HOPS:
            for layout in LAYOUTS:
                for problem in problems(draw_cell(count, SEED + seed, SEGMENTS, layout, hops)):
                    for score, asking in askings.items():
                        asked = problem if score == 'all' else thin(problem)
                        for reuse in (Keep(SCHEDULE, restart=0.5), Reuse()):
                            row = right.setdefault((reuse.name, score), {h: [] for h in HOPS})
                            row[hops].append(asking.ask(asked, reuse).right)
    return [
        dict(way=way, kept_by=score, n=len(row[HOPS[0]]))
        | {f'links_{hops}': 100 * float(np.mean(row[hops])) for hops in HOPS}
        for (way, score), row in right.items()
    ]


# ---------------------------------------------------------------------- a household


def ways() -> list[Way]:
    """Whole units first, then every score at every ratio."""
    found = [Way(method, method) for method in REUSE]
    for score in SCORES:
        for ratio in RATIOS:
            numbers = dict(unit_keep_ratio=ratio, unit_compress=score)
            found += [Way(f'{m}, {score} {ratio}', m, numbers=numbers) for m in REUSE]
    return found


def household(args: argparse.Namespace) -> list[dict]:
    """A row per way, with its paired difference to the same reuse of whole units."""
    settings = load_settings(args.settings, args.quick)
    varied, count = settings.ablations, settings.ablations.retrieved
    side = replace(settings.accuracy, households=varied.households, questions=varied.questions)
    with Progress(console=Console(stderr=True)) as bar:
        replies = ask_all(ways(), answering(args.planner), settings, side, [count], bar, 'asked')
    return [_row(replies, way, count) for way in ways()]


def _row(replies: Sequence[Reply], way: Way, count: int) -> dict:
    some = of(replies, way.name)
    found = rate(sum(tables.right(some)), len(some))
    differs = tables.differ(replies, way.name, way.method, count)
    plans = [reply.plan for reply in some]
    loaded = sum(sum(plan.loaded) for plan in plans)
    lent = sum(plan.tokens * len(plan.computed) - sum(plan.computed) for plan in plans)
    return dict(
        way=way.name,
        kept=100 * loaded / max(1, lent),
        right=100 * found['rate'],
        low=100 * found['low'],
        high=100 * found['high'],
        n=len(some),
        difference=differs['difference'],
        least=differs['low'],
        most=differs['high'],
    )


main = command('memory.budgets', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
