"""Compares one budget for all KV with fixed shares of it, at equal bytes, in virtual time.

The pools are the real ones (frames, decode streams, loaded units of memory, capsules on the
device), with tensors that have sizes and no bytes; frames, tokens, loads and restores have the
costs of `settings.yaml`. A seeded story lists the requests. In `shifting` each phase requests
mostly one kind, like a mission that plans, then acts and speaks, then retries from a capsule; in
`steady` all kinds are requested at the same mean rates all the time. Ways, each with the same
bytes:

static       the fixed shares that lose the fewest seconds on the development seeds
static rate  the fixed shares with the highest mean of the three rates there
shared       one budget, evicting what is worth least per byte: the shipped policy
shared cost  the same, but cost does not decay without use

lost: s per minute spent on recomputing what was evicted or refused (loads, frames and tokens,
restores). memory_hits: share of the units in view that were loaded. answers: share of the
questions that were answered to the end. capsules_kept: share of the restores from the device.
live_streams, capsules_there: means.

Physics: a fixed share is idle while its kind is not requested. One budget lends it to the other
kinds, so it can gain no more than what is idle; in `steady` that is only what random variation
leaves, and the rest of the gain is due to the eviction order: what is expensive per byte stays,
whatever its kind. Frames have a floor of three rows in every way, and none may be refused.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from benchmarks.common import report
from benchmarks.common.command import command
from benchmarks.plane import figures
from benchmarks.plane.settings import MIB, Settings, load_settings
from benchmarks.plane.world import Way
from embodied_kv.kv.eviction import EvictionOrder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this benchmark."""
    parser.add_argument(
        '--quick', action='store_true', help='short stories, few shares, two seeds'
    )


def run(args: argparse.Namespace) -> dict:
    """Find the best fixed shares, compare on other seeds, print the tables, return all figures."""
    settings = load_settings(args.quick)
    found = {name: _compared(settings, name == 'shifting') for name in ('shifting', 'steady')}
    if not args.json:
        for name, result in found.items():
            report.show(f'plane, {name}', result['ways'], 'means over seeds')
            report.show(f'{name}: shared less each', result['differences'], '95% of pairs')
    return dict(quick=args.quick, budget_mib=settings.budget_mib, seeds=settings.seeds, **found)


def _compared(settings: Settings, shifting: bool) -> dict:
    developed = [
        (
            way,
            figures.mean(
                [figures.lived(settings, way, s, shifting) for s in settings.development]
            ),
        )
        for way in figures.splits(settings)
    ]
    order = EvictionOrder.read()
    ways = {
        'static': min(developed, key=lambda pair: pair[1]['lost'])[0],
        'static rate': max(developed, key=lambda pair: figures.rate(pair[1]))[0],
        'shared': Way(order=order),
        'shared cost': Way(order=replace(order, half_after_seconds=0.0)),
    }
    runs = {
        name: [figures.lived(settings, way, seed, shifting) for seed in settings.seeds]
        for name, way in ways.items()
    }
    return dict(
        shares={name: _shares(way) for name, way in ways.items() if way.order is None},
        ways=[
            dict(way=name, mean_rate=figures.rate(figures.mean(own))) | figures.mean(own)
            for name, own in runs.items()
        ],
        differences=[
            dict(less=name) | _differences(runs['shared'], own)
            for name, own in runs.items()
            if name != 'shared'
        ],
    )


def _shares(way: Way) -> dict:
    return dict(language=way.language / MIB, memory=way.memory / MIB, capsules=way.capsules / MIB)


def _differences(runs: list[dict], others: list[dict]) -> dict:
    made = {}
    for name in ('lost', *figures.RATES):
        middle, half = figures.difference(runs, others, name)
        made[name] = f'{middle:+.3f} ± {half:.3f}'
    return made


main = command('plane', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
