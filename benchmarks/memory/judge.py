"""KEEP and CacheBlend at equal tokens, by token and by segment, on chains across segments.

Source: KEEP, section 6.2, tables 1 and 3, on a task that only recomputation can solve.

A judge (`training.judge`) answers with the end of a chain of two-token segments. It follows chains
inside memory, segment by segment; its question only looks the answer up. Where the KV of segments
was computed separately, all links are lost, so a way of reuse is right as often as it recomputes,
in each layer, the segments that the answer depends on. The gate: full recompute is right and full
reuse is not; otherwise nothing is compared. `judge_ways` defines the problems, the judges and the
ways; the development part selects a KEEP and a CacheBlend, on problems and a judge of its own, and
the report part compares the selected ones.

Physics: a share of 0.16 has room for 4 of 25 segments and 8 of 50, and a chain of 3 links is 4
segments. What a layer drops is lost to all later layers. A third of all segments point to an
earlier one, and attending to it changes one of their two tokens: that is about 0.16 of the tokens,
so CacheBlend by token has room for all of them, asked about or not; by segment it has room for
half. A forward chain cannot be followed by a choice after the first layer alone, because a segment
does not attend to later ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.progress import Progress

from benchmarks.common.command import BenchmarkError, command
from benchmarks.common.report import show
from benchmarks.memory import judge_tables as tables
from benchmarks.memory.judge_ask import problems
from benchmarks.memory.judge_batch import ProblemBatch
from benchmarks.memory.judge_tables import Asked
from benchmarks.memory.judge_ways import (
    LINKS,
    PARTS,
    SHARES,
    SIZES,
    Part,
    bounds,
    ways,
)
from embodied_kv.memory.reuse import Reuse
from training.judge.chains import LAYOUTS
from training.judge.exam import draw_cell
from training.judge.file import JUDGE, bundled_judge, load_judge

LAYERS = JUDGE.backbone.layers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this part."""
    parser.add_argument('--problems', type=int, help='of a cell and a judge, instead of the fixed')
    parser.add_argument('--segments', type=int, nargs='+', default=list(SIZES), help='of memory')


def run(args: argparse.Namespace) -> dict:
    """Ask, print the tables, and return all figures.

    Raises BenchmarkError if the gate does not hold.
    """
    asked = {name: collect(part, args.segments, args.problems) for name, part in PARTS.items()}
    gates = [dict(part=name, **tables.gate(some)) for name, some in asked.items()]
    if not all(row['holds'] for row in gates):
        raise BenchmarkError(f'these judges cannot tell ways of reuse apart: {gates}')
    chosen, report = tables.chosen(asked['development']), asked['report']
    figures = dict(
        settings=dict(parts={n: vars(p) for n, p in PARTS.items()}, problems=args.problems),
        gates=gates,
        chosen=chosen,
        differences=tables.differences(report, chosen, [f'judge_{j}' for j in report.judges]),
        rates=tables.rates(report, layouts(report)),
        development=tables.rates(asked['development'], layouts(asked['development'])),
    )
    if not args.json:
        note = 'points, the same problems; least, most: its 95% interval'
        show('the gate: right answers, %', gates)
        show('chosen on development', [chosen])
        show('KEEP less another way, on the report', figures['differences'], note)
        note = 'kept: of the chain, later layers; computed: of all tokens in all layers, %'
        for name in ('development', 'rates'):
            show(f'right answers, %, {name.replace("rates", "report")}', figures[name], note)
    return figures


def layouts(asked: Asked) -> list[str]:
    """Return the layout of each problem."""
    return [layout for _, layout, _ in asked.cells]


def collect(part: Part, sizes: Sequence[int], count: int | None = None) -> Asked:
    """Ask all problems of a part in all ways, with a progress bar on stderr."""
    asked = Asked()
    cells = [(s, layout, links) for s in sizes for layout in LAYOUTS for links in LINKS]
    with Progress(console=Console(stderr=True)) as bar:
        for judge in part.judges:
            model = load_judge(bundled_judge(judge))
            for cell in bar.track(cells, description=f'judge {judge}'):
                drawn = draw_cell(count or part.problems, part.seed + judge, *cell)
                batch = ProblemBatch(model, list(problems(drawn)))
                asked.add(judge, cell, {key: batch.ask(way) for key, way in all_ways()})
    return asked


def all_ways() -> Iterator[tuple[tuple[float, str], Reuse]]:
    """Yield the ways, each with its share of memory in the later layers and its name."""
    for (name, reuse), share in zip(bounds().items(), (1.0, 0.0), strict=True):
        yield (share, name), reuse
    for share in SHARES:
        for name, reuse in ways(share, LAYERS):
            yield (share, name), reuse


main = command('memory.judge', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
