"""Ways to reuse the KV of memory, judged by chains that can be followed only across segments.

Source: KEEP, section 6.2, tables 1 and 3, on a task where recomputing is all that can help.

A judge (`train.judge`) answers at the end of a chain of two-token segments. It follows chains
inside memory, segment by segment; its question only looks the answer up. Where the KV of segments
was computed apart, all hops are lost, so a way of reuse is right as often as it computes again,
in each layer, the segments that the answer hangs on.

All ways compute the same number of memory's tokens, CacheBlend's share of its paper in every layer
beyond the first (EPIC with one token of two computes more, and none in full): KEEP's main schedule
falls, as the paper says, with that average; the even one has that share in each layer. Every
problem goes through `memory.prefill` with moved keys, in all ways. The judges of three seeds get
problems of their own.

Physics: a share of 0.16 has room for 2 of 8 segments, 3 of 16, 6 of 32, 11 of 64, and a chain of 3
hops is 4 segments: in short prompts no choice is good enough. What a layer dropped is lost to all
later ones, and the first choice is made after the first layer, on what attention says there. A
third of all segments point to an earlier one, and meeting it changes one token of their two: 0.16
of the tokens is as many as that, so CacheBlend has room for all of them, asked or not.

What attention says (table `attention_hits`): after each of the first two layers the question
mostly attends to the asked segment more than to any other, and so does a segment to the one that
its pointer names, where that stands earlier. So a hop of importance finds the next segment of a
chain laid out backward. It also forgets: no other segment of the chain attends to the asked one,
which the question reads at the end; with `restart` 0 its score is gone after the first hop.
Forward there is no link to go along: a segment sees none that stand later.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from rich.console import Console
from rich.progress import Progress

from embodied_kv.bench.common.command import command
from embodied_kv.bench.common.paired import paired
from embodied_kv.bench.common.report import show
from embodied_kv.bench.memory.judge_ask import Asking, problems
from embodied_kv.bench.memory.judge_shares import explore
from embodied_kv.memory.keep import Keep
from embodied_kv.memory.reuse import CacheBlend, Epic, FullRecompute, Reuse
from embodied_kv.memory.schedule import Schedule
from embodied_kv.train.evaluate.report import rate
from embodied_kv.train.judge.chains import LAYOUTS
from embodied_kv.train.judge.exam import HOPS, SIZES, cells, draw_cell
from embodied_kv.train.judge.file import JUDGE, SEEDS, bundled_judge, load_judge

PROBLEMS = 42  # of segments, layout, hops and a judge: 504 of a method, layout and hops
SEED = 2_000_003  # of problems; neither training nor its exam draws these
LAYERS = JUDGE.backbone.layers
SHARE = 0.16  # of memory's tokens, in each layer but the first: CacheBlend's
AVERAGE = (1 + SHARE * (LAYERS - 1)) / LAYERS
FALLING = Schedule.of_average(LAYERS, AVERAGE)
METHODS: dict[str, Reuse] = {
    'full': FullRecompute(),
    'keep': Keep(FALLING),
    'keep even': Keep(Schedule.linear(LAYERS, SHARE, SHARE)),
    'keep no hops': Keep(FALLING, hops=0),
    'keep restart': Keep(FALLING, restart=0.5),
    'cacheblend': CacheBlend(SHARE),
    'epic': Epic(1),
    'full reuse': Reuse(),
}
ORDER = ('full', 'keep', 'cacheblend', 'full reuse')  # of the paper, the best first
TITLES = dict(
    rates='right answers, %',
    by_hops='right answers, %, by layout and hops',
    by_segments='right answers, %, by segments, with a hop or more',
    differences='paired differences, points, with a hop or more',
    order="the paper's order, with a hop or more",
    kept="the chain's tokens that a layer computes, %, with a hop or more",
    attention_hits='attention goes most where the chain goes, % of problems with a hop or more',
)
PAIRS = (('keep', 'cacheblend'), ('keep even', 'cacheblend'), ('keep', 'keep no hops'))


@dataclass
class Asked:
    """What was asked and said; lists in step. right, kept, computed: by method.

    kept: of the chain's tokens, share that each layer computed. computed: of all prompts' tokens
    in all layers, share that was computed.
    """

    seeds: list[int] = field(default_factory=list)
    cells: list[tuple[int, str, int]] = field(default_factory=list)
    attention_hits: list[list[dict]] = field(default_factory=list)
    right: dict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))
    kept: dict[str, list[Sequence[float]]] = field(default_factory=lambda: defaultdict(list))
    computed: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def where(
        self, size: int | None = None, layout: str | None = None, hops: int | None = None
    ) -> list[int]:
        """The problems of such cells; None is any."""
        wanted = (size, layout, hops)
        return [
            i
            for i, cell in enumerate(self.cells)
            if all(w in (None, c) for w, c in zip(wanted, cell, strict=True))
        ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of this part."""
    parser.add_argument('--problems', type=int, default=PROBLEMS, help='of a cell and a judge')
    parser.add_argument('--segments', type=int, nargs='+', default=list(SIZES), help='of memory')
    parser.add_argument('--seeds', type=int, nargs='+', default=list(SEEDS), help='of judges')
    parser.add_argument('--shares', action='store_true', help='explore shares, too; minutes')


def run(args: argparse.Namespace) -> dict:
    """Asks, prints the tables, and returns all figures."""
    asked = collect(args.seeds, args.segments, args.problems)
    figures = tables(asked, args.seeds, args.segments)
    if args.shares:
        figures['shares'] = explore([Asking(load_judge(bundled_judge(s))) for s in args.seeds])
    if not args.json:
        for name, title in TITLES.items():
            show(f'{title} ({len(asked.cells)} problems, {args.problems} a cell)', figures[name])
        if args.shares:
            show('explored: right answers and kept tokens, %, by share', figures['shares'])
    settings = dict(
        problems=args.problems,
        segments=args.segments,
        seeds=args.seeds,
        share=SHARE,
        schedule=FALLING.ratios,
    )
    return dict(settings=settings) | figures


def tables(asked: Asked, seeds: Sequence[int], sizes: Sequence[int]) -> dict[str, list[dict]]:
    """All figures, by the names of TITLES."""
    return dict(
        rates=rates(asked),
        by_hops=by_hops(asked),
        by_segments=by_segments(asked, sizes),
        differences=differences(asked, seeds),
        order=order(asked),
        kept=kept(asked),
        attention_hits=attention_hits(asked),
    )


def collect(seeds: Sequence[int], sizes: Sequence[int], count: int) -> Asked:
    """All problems of all judges, in all ways; a bar on stderr meanwhile."""
    asked = Asked()
    with Progress(console=Console(stderr=True)) as bar:
        for seed in bar.track(seeds, description='judges'):
            asking = Asking(load_judge(bundled_judge(seed)))
            task = bar.add_task(f'seed {seed}', total=len(list(cells(sizes))))
            for size, layout, hops in cells(sizes):
                for problem in problems(draw_cell(count, SEED + seed, size, layout, hops)):
                    asked.seeds.append(seed)
                    asked.cells.append((size, layout, hops))
                    asked.attention_hits.append(asking.attention_hits(problem))
                    for name, reuse in METHODS.items():
                        reply = asking.ask(problem, reuse)
                        asked.right[name].append(reply.right)
                        asked.kept[name].append(reply.kept)
                        share = np.mean(reply.work.computed) / problem.prompt.length
                        asked.computed[name].append(float(share))
                bar.advance(task)
    return asked


def _rate(asked: Asked, name: str, some: Sequence[int]) -> dict:
    right = np.asarray(asked.right[name])[list(some)]
    return rate(int(right.sum()), len(right))


def _hopping(asked: Asked, size: int | None = None) -> list[int]:
    return [i for i in asked.where(size) if asked.cells[i][2]]


def rates(asked: Asked) -> list[dict]:
    """A row per method: all problems, those with hops, and what was computed."""
    rows = []
    for name in METHODS:
        some = _rate(asked, name, _hopping(asked))
        rows.append(
            dict(
                method=name,
                right=100 * _rate(asked, name, asked.where())['rate'],
                with_hops=100 * some['rate'],
                low=100 * some['low'],
                high=100 * some['high'],
                n=some['n'],
                computed=100 * float(np.mean(asked.computed[name])),
            )
        )
    return rows


def by_hops(asked: Asked) -> list[dict]:
    """A row per method and layout, a column per hops with its Wilson interval."""
    return [
        dict(method=name, layout=layout)
        | {f'{h} hops': _cell(_rate(asked, name, asked.where(None, layout, h))) for h in HOPS}
        for layout in LAYOUTS
        for name in METHODS
    ]


def by_segments(asked: Asked, sizes: Sequence[int]) -> list[dict]:
    """A row per method, a column per number of segments."""
    return [
        dict(method=name) | {str(s): _cell(_rate(asked, name, _hopping(asked, s))) for s in sizes}
        for name in METHODS
    ]


def _cell(r: dict) -> str:
    return f'{100 * r["rate"]:.1f} [{100 * r["low"]:.1f}, {100 * r["high"]:.1f}] n={r["n"]}'


def differences(asked: Asked, seeds: Sequence[int]) -> list[dict]:
    """First less second over the same problems with hops; each judge's own difference beside."""
    rows, hopping = [], _hopping(asked)
    for first, second in PAIRS:
        right, other = (np.asarray(asked.right[name])[hopping] for name in (first, second))
        found = paired(right, other, hopping)
        judge = np.asarray(asked.seeds)[hopping]
        own = right.astype(float) - other
        rows.append(
            dict(first=first, second=second)
            | {name: 100 * found[name] for name in ('difference', 'low', 'high')}
            | dict(gained=found['gained'], lost=found['lost'], p_value=found['p_value'])
            | {f'judge_{seed}': 100 * float(own[judge == seed].mean()) for seed in seeds}
        )
    return rows


def kept(asked: Asked) -> list[dict]:
    """A row per method and layout, a column per layer."""
    rows = []
    for layout in LAYOUTS:
        some = [i for h in HOPS[1:] for i in asked.where(None, layout, h)]
        for name in METHODS:
            share = 100 * np.asarray(asked.kept[name])[some].mean(axis=0)
            layers = {f'layer {i + 1}': round(float(s), 1) for i, s in enumerate(share)}
            rows.append(dict(method=name, layout=layout) | layers)
    return rows


def attention_hits(asked: Asked) -> list[dict]:
    """A row per layer that a choice follows: what KEEP's importance has to go by."""
    hopping = _hopping(asked)
    return [
        dict(after_layer=layer + 1)
        | {
            f'{name}, {layout}': 100 * float(np.mean(list(_hits(asked, hopping, layer, name, at))))
            for name in ('question', 'link')
            for at, layout in enumerate(LAYOUTS)
        }
        for layer in range(LAYERS - 1)
    ]


def _hits(asked: Asked, some: Sequence[int], layer: int, name: str, at: int) -> Iterator[float]:
    for i in some:
        if asked.cells[i][1] == LAYOUTS[at]:
            yield float(asked.attention_hits[i][layer][name])


def order(asked: Asked) -> list[dict]:
    """Each neighbouring pair of the paper's order, over problems with hops."""
    rows, hopping = [], _hopping(asked)
    for better, worse in zip(ORDER, ORDER[1:], strict=False):
        found = paired(*(np.asarray(asked.right[n])[hopping] for n in (better, worse)), hopping)
        verdict = 'holds' if found['low'] > 0 else 'reversed' if found['high'] < 0 else 'open'
        rows.append(
            dict(better=better, worse=worse, verdict=verdict)
            | {name: 100 * found[name] for name in ('difference', 'low', 'high')}
        )
    return rows


main = command('memory.judge', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
