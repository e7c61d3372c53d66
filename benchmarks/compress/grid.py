"""Every score with every budget sharing, and a choice after n tokens of the answer.

The dimensions of the grid are the score of the tokens (`ways.SCORES`), how the layers share a
tenth of the cache (`compress.shares`), and how much of the answer scores in addition to the
question (`ways.AFTER`). The papers' methods are points of this grid. All ways answer the same
questions from the same prefill. `needle` reads codes from pages; any other preset answers about
the tabletop.

Settings are fixed here before any result: a winner on the development set becomes a default only
if it holds on the confirmation set, which is not inspected before. Rates have Wilson's intervals;
differences to the whole prefix are paired. docs/benchmarks/compression.md states what development
chose, and when it counts as confirmed.

Physics: a layer that keeps fewer tokens than are looked up in it cannot provide them; a token that
nothing before the choice attends to is kept by chance. As served, n + 1 tokens of an answer read
the whole prefix, so an answer of at most n + 1 tokens is never compressed: see `strict` for these.
`longer` counts only answers of which at least one token reads what was kept.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from benchmarks.common.command import command
from benchmarks.compress import needle, quality
from benchmarks.compress.policy import add_policy, load, settings, show
from benchmarks.compress.tally import Tally, row
from benchmarks.compress.ways import AFTER, STREAM, STRICT, Way, grid
from training.evaluate.report import rate

FRAMES = 60  # of 7 questions each on pages, of about 8.7 on the tabletop
SETS = dict(  # seed of pages, set of scenes
    development=(3_000_017, 10), confirmation=(4_000_037, 11), second=(5_000_011, 12)
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    add_policy(parser, FRAMES)
    parser.set_defaults(preset='needle')
    parser.add_argument('--set', choices=tuple(SETS), default='development')


def run(args: argparse.Namespace) -> dict:
    """Answer all questions, print the tables, and return all figures."""
    policy, ways = load(args), grid()
    pages, scenes = SETS[args.set]
    if args.preset == 'needle':
        tally = needle.collect(policy, ways, args.frames, pages)
    else:
        tally = quality.collect(policy, ways, args.frames, scenes)
    rows = figures(tally)
    if not args.json:
        titles = {by: f'right at a tenth, %, {by}, by n tokens seen' for by in (STREAM, STRICT)}
        show('grid', args, {title: table(rows, by) for by, title in titles.items()})
    return settings(args) | dict(questions=len(tally.kinds), rows=rows)


def figures(tally: Tally) -> list[dict]:
    """Return a row of the whole prefix, then one of each way."""
    ways = [way for way in tally.right if way]
    return [row(tally, None)] + [row(tally, way) | dict(longer=longer(tally, way)) for way in ways]


def longer(tally: Tally, way: Way) -> dict | None:
    """Return the rates of answers that continue after compression; None: there are none.

    The rates are those of the way and of the whole prefix. The answer from the whole prefix
    decides how long an answer is.
    """
    some = np.array(tally.tokens) > way.after + (way.by == STREAM)
    n = int(some.sum())
    if not n:
        return None
    right, whole = (int(tally.of(which)[some].sum()) for which in (way, None))
    return dict(right=rate(right, n), whole=rate(whole, n))


def table(rows: Sequence[dict], by: str) -> list[dict]:
    """Return a row per score and shares, with a column per n and one of the whole prefix."""
    shown: dict[tuple[str, str], dict] = {}
    for r in rows[1:]:
        if r['by'] == by:
            key = r['method'], r['shares']
            line = shown.setdefault(key, dict(zip(('score', 'shares'), key, strict=True)))
            line[f'n {r["after"]}'] = 100 * r['right']['rate']
    whole = 100 * rows[0]['right']['rate']
    assert all(len(line) == 2 + len(AFTER) for line in shown.values())
    return [line | dict(whole=whole) for line in shown.values()]


main = command('compress.grid', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
