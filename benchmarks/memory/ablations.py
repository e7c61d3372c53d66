"""KEEP without each of its ideas, one at a time; other blocks, and other ratios.

As `trace` in all but what is varied, at one number of segments. Blocks instead of groups: no
static-dynamic construction (sizes in segments; 1 never shares, 16 loses most). No hops:
importance to the question alone. restart: each hop keeps that share of the first scores.
next_layer, separate: no balanced loading; what is said cannot differ, and is not asked. Keys not
turned: stored ones stay as they were computed, wherever they come to. r: share of memory that is
computed again, mean over the layers; the least is the first layer alone, as both methods have it.

Physics: r bounds a plan's time from below, beside what is fresh and what is always computed; loads
can be hidden behind no more than there is to compute.

Source: KEEP, section 6.3, table 3, figures 3 and 10.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

from rich.console import Console
from rich.progress import Progress

from benchmarks.common import report
from benchmarks.common.command import command
from benchmarks.memory import floor, plots, tables
from benchmarks.memory.asking import Reply, ask_all
from benchmarks.memory.load_policies import POLICIES
from benchmarks.memory.settings import Settings, load_settings
from benchmarks.memory.trace import add_arguments, begin
from benchmarks.memory.ways import BLEND, FULL, KEEP, Way, answering, timed

BRIEF = (  # columns that are shown
    'way',
    'first_token_ms',
    'fresh_ms',
    'keep_takes_x',
    'full_takes_x',
    'in_view',
    'computed',
    'invalidated',
    'fresh_tokens',
    'of_floor',
)


def variants(settings: Settings, layers: int) -> Iterator[Way]:
    """KEEP first, then all that differs from it in one thing; for a planner of so many layers."""
    varied, block = settings.ablations, settings.construction.block
    yield Way(KEEP, KEEP)
    yield Way(FULL, FULL, 1)
    for size in sorted({*varied.blocks, block}):
        yield Way(f'keep, blocks of {size}', KEEP, size)
    yield Way('keep, no hops', KEEP, numbers=dict(max_walk_hops=0))
    yield Way(f'keep, restart {varied.restart}', KEEP, numbers=dict(restart=varied.restart))
    for policy in POLICIES:
        if policy != 'balanced':
            yield Way(f'keep, {policy}', KEEP, numbers=dict(load_policy=policy), answered=False)
    yield Way('keep, keys not turned', KEEP, rotate=False, timed=False)
    yield Way('cacheblend, groups', BLEND)
    for size in sorted({*varied.blocks, block}):
        yield Way(f'cacheblend, blocks of {size}', BLEND, size)
    for name, blocks in ((KEEP, 0), (BLEND, block)):
        for r in ('least', *varied.recompute_ratios):
            average = 1 / layers if r == 'least' else r
            yield Way(f'{name}, r {r}', name, blocks, dict(recompute_ratio=average))


def run(args: argparse.Namespace) -> dict:
    """Asks, times, prints the tables, and returns all figures."""
    result, settings = begin(args), load_settings(args.settings, args.quick)
    varied, count = settings.ablations, settings.ablations.retrieved
    said, large = answering(args.planner), timed(settings)
    machine = floor.ceilings()
    asking = replace(settings.accuracy, households=varied.households, questions=varied.questions)
    timing = replace(settings.speed, questions=varied.timed)
    with Progress(console=Console(stderr=True)) as bar:
        ways = [w for w in variants(settings, large.config.backbone.layers) if w.timed]
        slow = ask_all(ways, large, settings, timing, [count], bar, 'timed')
        ways = [w for w in variants(settings, said.config.backbone.layers) if w.answered]
        quick = ask_all(ways, said, settings, asking, [count], bar, 'answered')
    result['load'].append(os.getloadavg()[0])
    result |= dict(
        ceilings=asdict(machine),
        answers=answers(quick, count),
        seconds=[
            dict(
                tables.seconds(slow, name, count, large.config, machine),
                keep_takes_x=tables.faster(slow, name, KEEP, count),
            )
            for name in tables.names(slow)
        ],
    )
    if not args.json:
        title = f'{count} segments asked for'
        note = 'difference: to keep, points, the same questions; least, most: its 95% interval'
        report.show(f'right answers, %, of {args.planner}, {title}', result['answers'], note)
        brief = [{name: row[name] for name in BRIEF} for row in result['seconds']]
        report.show(f'time to the first token, random weights, {title}', brief)
        plots.ablations(result['answers'], result['seconds'])
    return result


def answers(replies: Sequence[Reply], retrieved: int) -> list[dict]:
    """A row per variant, with its paired difference to KEEP."""
    rows = []
    for name in tables.names(replies):
        row = tables.answers(replies, name, retrieved)
        found = tables.differ(replies, name, KEEP, retrieved)
        rows.append(
            {
                n: row[n]
                for n in ('way', 'right', 'low', 'high', 'n', 'told', 'told_right', 'stale')
            }
            | dict(difference=found['difference'], least=found['low'], most=found['high'])
            | {n: row[n] for n in ('in_view', 'computed', 'invalidated', 'fresh_tokens')}
        )
    return rows


main = command('memory.ablations', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
