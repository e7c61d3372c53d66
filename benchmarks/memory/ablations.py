"""KEEP without each of its ideas, one at a time; other blocks, and other ratios.

The setup is that of `trace`, except for what is varied, at one number of segments. Variants:
"blocks of N" replaces the groups, without static-dynamic construction (N in segments; blocks of 1
never share KV, blocks of 16 lose most). "no hops": importance to the question alone. "restart":
each hop keeps that share of the first scores. "next_layer" and "separate": no balanced loading;
the answers cannot differ, so they are only timed. "keys not turned": stored keys stay as they were
computed, whatever position they come to. "r": share of memory that is recomputed, mean over the
layers; with "r least" only the first layer recomputes, as it does in both methods.

Physics: r bounds a plan's time from below, in addition to fresh KV and what is always computed.
Loads can be hidden only as far as there is computation to hide them behind.

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

BRIEF = (  # columns of the printed table
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
    """Yield KEEP, then all variants that differ from it in one thing. layers: of the planner."""
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
    """Ask, time, print the tables, and return all figures."""
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
    """Return a row for each variant, with its paired difference to KEEP."""
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
