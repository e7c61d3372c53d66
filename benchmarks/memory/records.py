"""KEEP and CacheBlend at equal tokens on records of eight tokens, by a deeper judge.

A judge of eight layers (`training.records`) is asked for an attribute of a record, which may be
that of an earlier record, and so on; these are links. The gate (`training.records.gate`) checks
whether the judge can distinguish ways of reuse; if it does not hold, nothing is compared. The
compared ways are defined below and in `judge_ways`: each recomputes the same share of memory in
each layer beyond the first, by the same schedule, by token or by segment. Development selects a
KEEP and a CacheBlend, and the report compares the selected ones on problems of its own; the same
judge answers both, because there is only one.

Physics: without links nothing has to be recomputed. With l links, the asked record and the l - 1
records behind it in the chain hold one token each that has no meaning alone, and each of these
tokens needs the ones before it: by token, l tokens per layer would suffice if the way knew which.
A quarter of all attributes, about a fifth of all tokens, are such tokens, asked about or not; so a
share of 0.2 has room for nearly all of them by token, and by segment for 2 of 10 records, 4 of 20,
or 6 of 30.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

from benchmarks.common.command import BenchmarkError, command
from benchmarks.common.report import show
from benchmarks.memory import judge_tables as tables
from benchmarks.memory.grouped import pieces_of
from benchmarks.memory.judge_ask import Problem
from benchmarks.memory.judge_batch import ProblemBatch
from benchmarks.memory.judge_tables import Asked
from benchmarks.memory.judge_ways import Part, bounds, ways
from embodied_kv.memory.prompt import Piece, Prompt
from embodied_kv.memory.reuse import Reuse
from embodied_kv.model.planner import Planner
from training.judge.file import BUNDLED, load_judge
from training.records.gate import SIZES, gate
from training.records.records import (
    ASK,
    BOS,
    MAX_LINKS,
    TOKENS,
    Records,
    draw_questions,
    draw_records,
)

SHARES = (0.1, 0.2, 0.4)  # of memory, in each layer beyond the first: whole records of SIZES
LINKS = range(MAX_LINKS + 1)
GATE = dict(problems=200, seed=8_000_009)
# problems: per cell; a cell is a number of records and a number of links
PARTS = dict(
    development=Part(judges=(0,), seed=8_100_007, problems=20),
    report=Part(judges=(0,), seed=8_200_009, problems=50),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this part."""
    parser.add_argument('--judge', type=Path, default=BUNDLED / 'records.safetensors')
    parser.add_argument('--problems', type=int, help='of a cell, instead of the fixed')
    parser.add_argument('--records', type=int, nargs='+', default=list(SIZES), help='of memory')


def run(args: argparse.Namespace) -> dict:
    """Ask, print the tables, and return all figures.

    Raises BenchmarkError if the gate does not hold.
    """
    torch.set_num_threads(1)
    model = load_judge(args.judge)
    gated = gate(model, **GATE)
    if not gated.holds:
        raise BenchmarkError(f'this judge cannot tell ways of reuse apart: {gated.said()}')
    asked = {name: collect(model, part, args) for name, part in PARTS.items()}
    chosen, report = tables.chosen(asked['development']), asked['report']
    figures = dict(
        settings=dict(parts={n: vars(p) for n, p in PARTS.items()}, problems=args.problems),
        gate=gated.said(),
        chosen=chosen,
        differences=tables.differences(report, chosen, links(report)),
        rates=tables.rates(report, links(report)),
        development=tables.rates(asked['development'], links(asked['development'])),
    )
    if not args.json:
        show('the gate', [dict(full=gated.full, reuse=gated.reuse, loss=gated.loss, n=gated.n)])
        show('chosen on development', [chosen])
        note = 'points, the same problems; least, most: its 95% interval'
        show('KEEP less another way, on the report', figures['differences'], note)
        note = 'kept: of the records it hangs on, later layers; computed: of all tokens, %'
        show('right answers, %, report', figures['rates'], note)
    return figures


def links(asked: Asked) -> list[str]:
    """Return the number of links of each problem, as text."""
    return [f'{links} links' for _, _, links in asked.cells]


def collect(model: Planner, part: Part, args: argparse.Namespace) -> Asked:
    """Ask all problems of a part in all ways, with a progress bar on stderr."""
    asked = Asked()
    cells = [(size, count) for size in args.records for count in LINKS]
    with Progress(console=Console(stderr=True), disable=args.json) as bar:
        for size, count in bar.track(cells, description='cells'):
            drawn = list(problems(args.problems or part.problems, part.seed, size, count))
            batch = ProblemBatch(model, drawn)
            replies = {key: batch.ask(way) for key, way in all_ways(model)}
            asked.add(0, (size, 'records', count), replies)
    return asked


def all_ways(model: Planner) -> Iterator[tuple[tuple[float, str], Reuse]]:
    """Yield the ways, each with its share of memory in the later layers and its name."""
    for (name, reuse), share in zip(bounds().items(), (1.0, 0.0), strict=True):
        yield (share, name), reuse
    for share in SHARES:
        for name, reuse in ways(share, model.config.backbone.layers):
            yield (share, name), reuse


def problems(count: int, seed: int, size: int, links: int) -> Iterator[Problem]:
    """Yield `count` problems of a cell with exactly its number of links; the same for a seed."""
    for question in questions(count, seed, size, links):
        yield problem(*question)


def questions(
    count: int, seed: int, size: int, links: int
) -> Iterator[tuple[Records, int, int, int]]:
    """Yield records, row, record and attribute of `count` questions of a cell."""
    rng = np.random.default_rng((seed, size, links))
    left = count
    while left:
        records = draw_records(rng, left, size)
        attributes, asked = draw_questions(rng, records, 1, links)
        for row, (attribute, (record,)) in enumerate(zip(attributes, asked, strict=True)):
            if records.links[row, record, attribute] == links:
                yield records, row, int(record), int(attribute)
                left -= 1


def problem(records: Records, row: int, record: int, attribute: int) -> Problem:
    """Return the problem of one prompt's question; each record is a unit of its own."""
    apart = np.zeros(records.names.shape[1], bool)
    return built(records, row, record, attribute, pieces_of(units(records, row), apart, apart))


def units(records: Records, row: int) -> list[list[int]]:
    """Return the tokens of each record of a prompt."""
    return records.memory[row, 1:].reshape(-1, TOKENS).tolist()


def built(
    records: Records, row: int, record: int, attribute: int, pieces: Sequence[Piece]
) -> Problem:
    """Return the problem of one prompt's question. pieces: its records, named by their index."""
    chain = [record]
    while records.links[row, chain[-1], attribute]:
        chain.append(int(records.like[row, chain[-1]]))
    question = int(ASK + attribute), int(records.names[row, record])
    answer = int(records.values[row, record, attribute])
    places = tuple(i for i, piece in enumerate(pieces) if int(piece.segment) in chain)
    return Problem(Prompt((BOS,), tuple(pieces), question), answer, places)


main = command('memory.records', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
