"""Plans in a world that changes without idle time: churn and the cost of loads, by way.

An update is a step of the world. A given number of updates comes between two plans, and the KV
that they invalidated is recomputed inside the plan that needs it. The tokens that each way
computes and loads are counted in real plans over one story; `memory.pipeline` predicts the time
from these counts, as a fraction of a full recompute, for loads from the speed of memory to half of
a full recompute. No clock is involved. With --measured the planner of `speed` is timed as well,
with its loads slowed down by waiting, on one thread, and the ratios are taken within the run.

KEEP has its groups. CacheBlend has blocks of four segments as in its paper, single segments, or
KEEP's groups, each with the loads of its paper (next_layer) and with balanced loads. Both methods
recompute the same share of memory. Not counted: KEEP's choice and CacheBlend's comparison of keys.
A block keeps its KV in front of a change, and this costs no load (`blocks`), which favours blocks.

Physics: a plan computes at least its fresh tokens in all layers, and its share of the others. The
KV of a block behind a change is invalid, half of it on average: u updates in different blocks of b
segments make u (b + 1) / 2 segments fresh, with single segments u. CacheBlend also loads every
token in every layer but the first. Where many updates change the same segments, the number of
fresh tokens saturates, and so does the gain of a better construction.

Source: KEEP, sections 3, 4.1 and 6.2, figures 3 and 9.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.progress import Progress

from benchmarks.common import report
from benchmarks.common.command import command
from benchmarks.memory import plots, tables
from benchmarks.memory.asking import Reply, ask_all, of
from benchmarks.memory.settings import Settings, load_settings
from benchmarks.memory.timeline import Job
from benchmarks.memory.trace import add_common, begin
from benchmarks.memory.ways import BLEND, FULL, KEEP, Way, encoder_of, timed
from embodied_kv.model.planner_checkpoint import LoadedPlanner

AIM = 1.5  # times as fast as CacheBlend at high churn
LEVEL = 1.03  # smaller ratios are not significant with this few plans
PAPERS = 'next_layer'  # the load policy of CacheBlend's paper


@dataclass(frozen=True)
class Counted:
    """The work of a plan. job: of its prefill; fresh: tokens of units; tokens: of its prompt."""

    job: Job
    fresh: int
    tokens: int

    def parts(self, load: float) -> dict[str, float]:
        """Return its time as a fraction of a full recompute of its prompt, by load policy.

        load: time to load a token in a layer, as a fraction of computing it.
        """
        job, layers = self.job, len(self.job.computed)
        whole = self.tokens * layers
        loads = {unit: load * tokens for unit, tokens in job.tokens.items()}
        foretold = job.foretold(job.computed, loads)
        return {name: (self.fresh * layers + t.end) / whole for name, t in foretold.items()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this part."""
    add_common(parser)
    parser.add_argument('--measured', action='store_true', help='time plans, too; half an hour')


def ways(settings: Settings) -> list[Way]:
    """Return the ways to compare; full recompute of text first."""
    block = settings.construction.block
    return [
        Way(FULL, FULL, 1),
        Way(KEEP, KEEP),
        Way(blend(block), BLEND, block),
        Way(blend(1), BLEND, 1),
        Way(blend(0), BLEND),
    ]


def blend(blocks: int) -> str:
    """Return the name of CacheBlend over a construction."""
    return f'{BLEND}, blocks of {blocks}' if blocks else f'{BLEND}, groups'


def run(args: argparse.Namespace) -> dict:
    """Count, predict, print the tables, draw, and return all figures."""
    result, settings = begin(args), load_settings(args.settings, args.quick)
    result['encoder'] = encoder_of(settings.construction.encoder).name
    with Progress(console=Console(stderr=True)) as bar:
        counted = {n: count(settings, n, bar) for n in settings.churn.updates}
        result['rows'] = list(foretold(counted, settings))
        result['crossovers'] = list(crossovers(result['rows'], settings))
        result['measured'] = list(measured(settings, bar)) if args.measured else []
    if not args.json:
        note = f'in parts of a full recompute; groups by {result["encoder"]}'
        report.show('time to the first token, foretold', result['rows'], note)
        beyond = f'updates from which KEEP is faster, beyond {LEVEL}, and {AIM} times'
        report.show(beyond, result['crossovers'])
        if result['measured']:
            report.show('measured, medians of ratios to text in pairs', result['measured'])
        plots.churn([row for row in result['rows'] if row['loads'] == PAPERS], AIM)
    return result


def count(settings: Settings, updates: int, bar: Progress) -> dict[str, list[Counted]]:
    """Return the work of each way's plans, with so many updates between two plans."""
    c = settings.churn
    heads = dict(heads=1, kv_heads=1, head_dim=8)
    small = timed(settings, width=c.width, mlp=c.width, **heads)
    replies = _ask(settings, small, ways(settings), updates, bar)
    tokens = settings.speed.segment_tokens
    return {
        way.name: [
            Counted(Job.of(r, dict.fromkeys(r.plan.segments, tokens)), r.fresh, r.plan.tokens)
            for r in of(replies, way.name)
        ]
        for way in ways(settings)
    }


def _ask(
    settings: Settings, planner: LoadedPlanner, some: Sequence[Way], updates: int, bar: Progress
) -> list[Reply]:
    c = settings.churn
    reuse = replace(settings.reuse, schedule=c.schedule, restart=c.restart)
    world = replace(settings.world, between=updates)
    changed = replace(settings, world=world, reuse=reuse)
    side = replace(settings.speed, questions=c.questions, warm=c.warm)
    title = f'{updates} updates a plan'
    return ask_all(some, planner, changed, side, [c.retrieved], bar, title, idle=False)


def foretold(
    counted: Mapping[int, Mapping[str, Sequence[Counted]]], settings: Settings
) -> Iterator[dict]:
    """Yield a row for each number of updates, load and way: means over plans.

    of_keep_x: the time relative to KEEP's.
    """
    for updates, by_way in counted.items():
        for load in settings.churn.loads:
            keep = _mean(by_way[KEEP], load)['balanced']
            for way, some in by_way.items():
                times = _mean(some, load)
                for policy in ('balanced', PAPERS) if way.startswith(BLEND) else ('balanced',):
                    yield dict(
                        updates=updates,
                        load=load,
                        way=way,
                        loads=policy,
                        parts=times[policy],
                        of_keep_x=times[policy] / keep,
                        fresh=sum(one.fresh for one in some) / len(some),
                    )


def _mean(some: Sequence[Counted], load: float) -> dict[str, float]:
    parts = [one.parts(load) for one in some]
    return {policy: sum(part[policy] for part in parts) / len(parts) for policy in parts[0]}


def crossovers(rows: Sequence[dict], settings: Settings) -> Iterator[dict]:
    """Yield, by load and way, the fewest updates from which KEEP stays faster.

    faster_from: by more than LEVEL; aim_from: by more than AIM; empty if it never does. most: the
    largest ratio of the way's time to KEEP's at any counted number of updates.
    """
    beside = dict.fromkeys((row['way'], row['loads']) for row in rows if row['way'] != KEEP)
    for load in settings.churn.loads:
        for way, policy in beside:
            mine = [r for r in rows if (r['load'], r['way'], r['loads']) == (load, way, policy)]
            yield dict(
                load=load,
                way=way,
                loads=policy,
                faster_from=_from(mine, LEVEL),
                aim_from=_from(mine, AIM),
                most=max(row['of_keep_x'] for row in mine),
            )


def _from(rows: Sequence[dict], times: float) -> int | str:
    found: int | str = ''
    for row in sorted(rows, key=lambda row: -row['updates']):
        if row['of_keep_x'] <= times:
            break
        found = row['updates']
    return found


def measured(settings: Settings, bar: Progress) -> Iterator[dict]:
    """Yield a row of measured times for each number of updates, load and way.

    Times are medians, and ratios are medians of pairs.
    """
    c, large = settings.churn, timed(settings)
    text = ways(settings)[0]
    token = 0.0  # seconds per token and layer of a full recompute
    for updates in c.measured_updates:
        for load in c.measured_loads:
            if not token:
                token = _token_seconds(_ask(settings, large, [text], updates, bar))
            some = [replace(way, load_seconds=load * token) for way in ways(settings)]
            replies = _ask(settings, large, some, updates, bar)
            for way in some:
                times = sorted(r.plan.seconds_first_token for r in of(replies, way.name))
                yield dict(
                    updates=updates,
                    load=load,
                    way=way.name,
                    ms=1e3 * times[len(times) // 2],
                    of_keep_x=tables.faster(replies, KEEP, way.name, c.retrieved),
                    of_full_x=tables.faster(replies, FULL, way.name, c.retrieved),
                )


def _token_seconds(replies: Sequence[Reply]) -> float:
    each = sorted(
        r.plan.seconds_first_token / (r.plan.tokens * len(r.plan.computed)) for r in replies
    )
    return each[len(each) // 2]


main = command('memory.churn', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
