"""Figures of fleets: latency and success by number of robots and way of serving.

Knows runs as `lockstep` returns them. Differences are paired: a scene under one way against the
same scene under another. Scenes are treated as the independent units, though those of one run
share an engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes

from benchmarks.common import report
from benchmarks.common.pictures import plt, save
from benchmarks.common.ratio import interval
from training.evaluate.report import rate

COLORS = ('tab:gray', 'tab:blue', 'tab:olive', 'tab:orange')


def rows(runs: Sequence[dict], alone: Sequence[str]) -> list[dict]:
    """Return a row per run.

    alone: the ways of one robot alone; the first is the reference of ways that have no such run.
    p25, average, p95: latency, s; low, high: of the average. done: successful tasks of the fleet
    in an hour. of_alone: the average over that of the same tasks alone, with the same horizon.
    still: s of a task that its robot waited, mean.
    busy: share of the time that the engine computed. decision: median and 99th percentile of the
    time of a scheduler's decision, us, and how many robots waited, mean.
    """
    floors = {run['way']: _latencies(run) for run in runs if run['robots'] == 1}
    made = []
    for run in runs:
        own, floor = _latencies(run), floors.get(run['way'], floors[alone[0]])
        values, tasks = list(own.values()), run['tasks']
        p25, p95 = np.percentile(values, (25, 95))
        low, high = interval(values)
        success = rate(sum(task['success'] for task in tasks), len(tasks))
        waited, costs = np.array(run['decisions'], np.float64).T
        made.append(
            dict(
                robots=run['robots'],
                way=run['way'],
                tasks=len(tasks),
                p25=float(p25),
                average=fmean(values),
                p95=float(p95),
                low=low,
                high=high,
                success=success,
                done=3600 * run['robots'] * success['rate'] / fmean(values),
                of_alone=fmean(values) / fmean(floor[task] for task in own),
                still=fmean(task['still'] for task in tasks),
                horizon=fmean(h for task in tasks for h in task['horizons']),
                rounds=fmean(len(task['horizons']) for task in tasks),
                batch=run['served'] / run['batches'],
                busy=run['charged'] / run['span'],
                chunks_per_second=run['served'] / run['span'],
                computed_over_charged=run['computed'] / run['charged'],
                decision=dict(
                    count=len(costs),
                    waiting=float(waited.mean()),
                    median=float(np.median(costs)) * 1e6,
                    p99=float(np.percentile(costs, 99)) * 1e6,
                ),
            )
        )
    return made


def pairs(runs: Sequence[dict], compared: Sequence[tuple[str, str]]) -> list[dict]:
    """Return how the average latency of two ways differs, for every size of fleet.

    difference, low, high: s, 95%. share: the difference over the other's average. only_first,
    only_second: scenes in which only one of the two succeeds.
    """
    at = {(run['robots'], run['way']): run for run in runs}
    made = []
    for robots in dict.fromkeys(run['robots'] for run in runs):
        for one, other in compared:
            if (robots, one) not in at or (robots, other) not in at:
                continue
            first, second = _latencies(at[robots, one]), _latencies(at[robots, other])
            apart = [first[task] - second[task] for task in first]
            low, high = interval(apart)
            done, done_too = _successes(at[robots, one]), _successes(at[robots, other])
            made.append(
                dict(
                    robots=robots,
                    way=one,
                    against=other,
                    difference=fmean(apart),
                    low=low,
                    high=high,
                    share=fmean(apart) / fmean(second.values()),
                    only_first=len(done - done_too),
                    only_second=len(done_too - done),
                )
            )
    return made


def _latencies(run: dict) -> dict[int, float]:
    return {task['task']: task['seconds'] for task in run['tasks']}


def _successes(run: dict) -> set[int]:
    return {task['task'] for task in run['tasks'] if task['success']}


def show(made: Sequence[dict], compared: Sequence[dict], engine: dict) -> None:
    """Print four tables."""
    capacity = engine['capacity']
    report.show(
        'fleet.serving: the engine, chunks/s',
        [
            dict(robots=n, asked=asked, capacity=capacity, load=asked / capacity)
            for n, asked in engine['asked'].items()
        ],
        f'asked: if nobody waits\nbatches of {engine["saturation"]}\n'
        f'saturated from {engine["saturates_at"]:.1f} robots on\n'
        f'computed over charged seconds: {engine["computed_over_charged"]:.2f}',
    )
    report.show(
        'fleet.serving: latency of a task, s, and success',
        [
            dict(
                robots=row['robots'],
                way=row['way'],
                n=row['tasks'],
                P25=row['p25'],
                average='{average:.2f} ({low:.2f} to {high:.2f})'.format(**row),
                P95=row['p95'],
                of_alone=f'{row["of_alone"]:.2f}',
                success='{rate:.0%} ({low:.0%} to {high:.0%})'.format(**row['success']),
                done_per_hour=f'{row["done"]:.0f}',
            )
            for row in made
        ],
        'in brackets 95%; a task that fails counts with its whole time',
    )
    report.show(
        'fleet.serving: average latency against another way, the same scenes',
        [
            dict(
                robots=row['robots'],
                way=row['way'],
                against=row['against'],
                difference='{difference:+.2f} ({low:+.2f} to {high:+.2f})'.format(**row),
                share=f'{row["share"]:+.0%}',
                successes_of_one_alone=f'{row["only_first"]} : {row["only_second"]}',
            )
            for row in compared
        ],
        's, 95% with scenes as units',
    )
    report.show(
        'fleet.serving: what the fleet did',
        [
            dict(
                robots=row['robots'],
                way=row['way'],
                H=row['horizon'],
                rounds=row['rounds'],
                still_s=row['still'],
                batch=row['batch'],
                busy=row['busy'],
                chunks_per_s=row['chunks_per_second'],
                waiting=row['decision']['waiting'],
                decision_us=row['decision']['median'],
                p99_us=row['decision']['p99'],
            )
            for row in made
        ],
        'rounds, still: of a task; busy: the engine, share of the time; waiting: robots at a '
        'decision',
    )


def plot(made: Sequence[dict], engine: dict) -> None:
    """Plot latency and success by robots for each way: out/bench/fleet_serving.png."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout='constrained')
    ways = list(dict.fromkeys(row['way'] for row in made if row['robots'] > 1))
    for place, (way, color) in enumerate(zip(ways, COLORS, strict=False)):
        some = sorted((row for row in made if row['way'] == way), key=lambda row: row['robots'])
        apart = 1.03 ** (place - 1.5)  # so that the bars do not overlap
        x = np.array([row['robots'] for row in some]) * apart
        _line(
            axes[0], x, [[row[k] for row in some] for k in ('average', 'low', 'high')], way, color
        )
        axes[0].plot(x, [row['p95'] for row in some], '--', color=color, alpha=0.5)
        axes[0].plot(x, [row['p25'] for row in some], ':', color=color, alpha=0.5)
        shares = [[100 * row['success'][k] for row in some] for k in ('rate', 'low', 'high')]
        _line(axes[1], x, shares, way, color)
    for axis, label in zip(axes, ('task latency, s', 'tasks that succeed, %'), strict=True):
        axis.axvline(engine['saturates_at'], color='black', linewidth=0.5)
        axis.set(xscale='log', xlabel='robots (line: the engine saturates)', ylabel=label)
        axis.set_xticks(sorted({row['robots'] for row in made}))
        axis.get_xaxis().set_major_formatter('{x:.0f}')
        axis.minorticks_off()
        axis.set_ylim(bottom=0)
    axes[0].set_title('average, 95%; dashed: P95, dotted: P25', fontsize=9)
    axes[1].legend(frameon=False, fontsize=8, loc='lower left')
    save(figure, 'fleet_serving')


def _line(axis: Axes, x: np.ndarray, values: list, label: str, color: str) -> None:
    """Plot points with their intervals. values: middles, lower and upper ends."""
    y, low, high = np.array(values)
    axis.errorbar(x, y, [y - low, high - y], label=label, color=color, marker='o', capsize=2)
