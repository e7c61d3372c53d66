"""Schedulers and execution horizons, charged with the success that executing longer costs.

The simulated fleets of `benchmarks.fleet`, with four horizons for the same actions of a task:
- static: the largest H that keeps the accuracy of the task. An input from the paper.
- dynamic: H times a ratio per phase, up to 2.8. An input from the paper, which states that its
  confidence rule finds the phases where this costs no accuracy.
- even: as many rounds as dynamic, of equal length: what executing longer saves without any rule.
- whole: the whole chunk in each round.

The time of a task is simulated. Its success is expected: each round is charged with the success
that was measured for its executed share of a chunk, with the bundled policy
(benchmarks/fleet/success.yaml). `paper` is the gain if dynamic horizons cost no accuracy. A failed
task takes its whole time and is not repeated.

Physics: executing longer saves rounds, so it saves time wherever robots wait for an engine, and
whatever decides how far to execute. It costs success where the world does not behave as predicted.
A rule is worth what it saves beyond even horizons of the same number of rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from statistics import fmean

import numpy as np
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from benchmarks.common import report
from benchmarks.common.command import command
from benchmarks.fleet import workload
from benchmarks.fleet.runs import HIGHEST, PLANS, POLICIES, Bench
from benchmarks.fleet.simulate import Simulation
from benchmarks.fleet.subject import Subject
from benchmarks.fleet.success import Curve
from benchmarks.fleet.workload import Job, poisson
from embodied_kv.fleet.engines import EngineState

SCHEDULERS = ('fifo', 'autellix', 'kairos')
HORIZONS = ('static', 'dynamic', 'even', 'whole')
SHARES = (1.0, HIGHEST)  # of the peak rate
REFERENCE = ('static', 'fifo')
CURVES, SEED = 2000, 0  # drawn for the intervals


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument('--quick', action='store_true', help='one workload, fewer tasks')


def run(args: argparse.Namespace) -> dict:
    """Simulate, print the tables, and return all figures."""
    common, workloads = workload.read()
    plan = PLANS['quick' if args.quick else 'full']
    subjects = [Subject.of(each, common) for each in workloads[: 1 if args.quick else None]]
    curve = Curve.read()
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=args.json) as bar:
        ways = len(SHARES) * len(HORIZONS) * len(SCHEDULERS) * len(plan.seeds)
        task = bar.add_task('simulations', total=len(subjects) * ways)
        bench = Bench(plan, lambda: bar.advance(task))
        rows = [row for each in subjects for row in measured(bench, each, curve)]
    total = overall(rows)
    if not args.json:
        report.show(
            'fleet.charged: mean over the workloads, against static horizons and FIFO',
            [_line(row) for row in total],
            'rate: over the peak. horizon: mean actions of a round. saved: % of the time of a '
            'task. success: expected, 95% of the measured rates. done: % more successful tasks '
            'in an hour of robot time; paper: if dynamic horizons cost no accuracy; break even: '
            'the success at which this is 0.',
        )
    shares = dict(zip(curve.shares.tolist(), curve.rates.tolist(), strict=True))
    return dict(
        quick=args.quick, measured=dict(rates=shares, episodes=curve.episodes), total=total,
        rows=rows,
    )  # fmt: skip


def cut(static: Sequence[Job], dynamic: Sequence[Job], chunk: int) -> dict[str, list[Job]]:
    """Return the same tasks with each of HORIZONS."""
    whole, even = [], []
    for job, longer in zip(static, dynamic, strict=True):
        full, rest = divmod(sum(job.horizons), chunk)
        whole.append(replace(job, horizons=(chunk,) * full + (rest,) * (rest > 0)))
        rounds = len(longer.horizons)
        each, more = divmod(sum(job.horizons), rounds)
        even.append(replace(job, horizons=(each + 1,) * more + (each,) * (rounds - more)))
    return dict(static=list(static), dynamic=list(dynamic), even=even, whole=whole)


def measured(bench: Bench, subject: Subject, curve: Curve) -> list[dict]:
    """Return a row per rate, horizon and scheduler of one workload.

    average: s of a task. success: expected, with its 95% interval over drawn curves. done:
    successful tasks in an hour of robot time. saved, gain: % against REFERENCE, of the average and
    of done; `gain_low` and `gain_high` are the 95% interval over drawn curves and seeds.
    break_even: the success at which the gain is 0. gain_paper: the gain if dynamic horizons had
    the success of static ones.
    """
    random = np.random.default_rng(SEED)
    curves = [curve, *(curve.drawn(random) for _ in range(CURVES))]
    seeds = bench.plan.seeds
    picks = random.integers(len(seeds), size=(CURVES, len(seeds)))
    tasks = [
        cut(*subject.jobs(bench.tasks(subject), seed), subject.common.chunk) for seed in seeds
    ]
    success = {  # [curves, seeds], the measured curve first
        horizon: np.array(
            [[each.of(jobs[horizon], subject.common.chunk).mean() for jobs in tasks]
             for each in curves]
        )
        for horizon in HORIZONS
    }  # fmt: skip
    rows = []
    for share in SHARES:
        found = {
            way: _times(bench, subject, [jobs[way[0]] for jobs in tasks], share, way[1])
            for way in product(HORIZONS, SCHEDULERS)
        }
        base = success[REFERENCE[0]] / found[REFERENCE]
        for (horizon, scheduler), times in found.items():
            own = success[horizon]
            gains = 100 * (own / times / base - 1)  # [curves, seeds]
            drawn = gains[1:][np.arange(CURVES)[:, None], picks].mean(1)
            rows.append(
                dict(
                    workload=subject.name,
                    share=share,
                    horizon=horizon,
                    scheduler=scheduler,
                    actions=fmean(
                        h for jobs in tasks for job in jobs[horizon] for h in job.horizons
                    ),
                    average=float(times.mean()),
                    saved=float(100 * (1 - times / found[REFERENCE]).mean()),
                    success=float(own[0].mean()),
                    **_ends('success', own[1:].mean(1)),
                    done=float(3600 * (own[0] / times).mean()),
                    break_even=float((base[0] * times).mean()),
                    gain=float(gains[0].mean()),
                    **_ends('gain', drawn),
                    gain_paper=float(
                        100 * (success[REFERENCE[0]][0] / times / base[0] - 1).mean()
                    ) if horizon == 'dynamic' else None,
                )
            )  # fmt: skip
    return rows


def overall(rows: Sequence[dict]) -> list[dict]:
    """Return the mean over the workloads of each figure, by rate, horizon and scheduler."""
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        groups.setdefault((row['share'], row['horizon'], row['scheduler']), []).append(row)
    means = [name for name, value in rows[0].items() if isinstance(value, float)]
    return [
        dict(share=share, horizon=horizon, scheduler=scheduler)
        | {name: fmean(row[name] for row in some) for name in means if name != 'share'}
        | dict(
            gain_paper=fmean(row['gain_paper'] for row in some) if horizon == 'dynamic' else None
        )
        for (share, horizon, scheduler), some in groups.items()
    ]


def _times(
    bench: Bench, subject: Subject, jobs: Sequence[list[Job]], share: float, scheduler: str
) -> np.ndarray:
    """Return the average time (s) of a task for each seed."""
    averages = []
    for seed, some in zip(bench.plan.seeds, jobs, strict=True):
        engines = [EngineState('edge', subject.profile)]
        simulation = Simulation(
            some, POLICIES[scheduler], engines, subject.common.wifi, subject.lead
        )
        rate = subject.calibrated['peak'] * share
        moments = poisson(rate, len(some), np.random.default_rng(seed + 1000))
        averages.append(simulation.arrive(moments).latency.mean())
        bench.tick()
    return np.array(averages)


def _ends(name: str, values: np.ndarray) -> dict[str, float]:
    low, high = np.percentile(values, (2.5, 97.5))
    return {f'{name}_low': float(low), f'{name}_high': float(high)}


def _line(row: dict) -> dict:
    paper = row['gain_paper']
    return dict(
        rate=f'{row["share"]:g}',
        horizons=row['horizon'],
        scheduler=row['scheduler'],
        horizon=row['actions'],
        average_s=row['average'],
        saved=f'{row["saved"]:.0f}',
        success='{:.1f} ({:.1f} to {:.1f})'.format(
            *(100 * row[key] for key in ('success', 'success_low', 'success_high'))
        ),
        done='{gain:+.0f} ({gain_low:+.0f} to {gain_high:+.0f})'.format(**row),
        paper=None if paper is None else f'{paper:+.0f}',
        break_even=f'{100 * row["break_even"]:.0f}',
    )


main = command('fleet.charged', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
