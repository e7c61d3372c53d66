"""Every experiment on every subject, and the evaluation of the results.

Knows the experiments and their order. Does not know tables or files.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from benchmarks.fleet.compare import BASELINES, aims, gate, saved, table, worse
from benchmarks.fleet.decisions import decisions
from benchmarks.fleet.runs import POLICIES, WAYS, Bench, Plan
from benchmarks.fleet.subject import Subject

EXPERIMENTS = ('peaks', 'online', 'short', 'fleets', 'places', 'settings', 'networks')


def measure(subjects: Sequence[Subject], plan: Plan, quiet: bool) -> dict:
    """Return every figure, by experiment."""
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    found = {key: [] for key in EXPERIMENTS}
    with Progress(*columns, disable=quiet) as progress:
        task = progress.add_task('simulations', total=_simulations(subjects, plan))
        bench = Bench(plan, lambda: progress.advance(task))
        for subject in subjects:
            progress.update(task, description=subject.name)
            known = subject.calibrated
            found['peaks'].append(
                dict(workload=subject.name) | known if known else bench.peak(subject)
            )
            peak = found['peaks'][-1]['peak']
            found['peaks'][-1] |= bench.load(subject, peak)
            found['online'] += bench.online(subject, peak)
            found['short'] += bench.short(subject, peak)
            found['fleets'] += bench.fleets(subject)
            found['places'] += bench.places(subject, peak)
            if subject.name in plan.micro:
                found['settings'] += bench.settings(subject, peak)
                found['networks'] += bench.networks(subject, peak)
    online, valid = found['online'], {row['workload']: row.get('valid') for row in found['peaks']}
    return found | dict(
        gate=gate(online),
        table=table(online),
        worse=worse(online),
        aims=aims(online, valid),
        decisions=decisions(),
    )


def _simulations(subjects: Sequence[Subject], plan: Plan) -> int:
    looked_for = sum(not subject.calibrated for subject in subjects)
    rates = (1 + plan.halvings) * looked_for + len(WAYS) * len(plan.shares) * len(subjects)
    fleets = len(POLICIES) + (len(POLICIES) + 1) * len(plan.robots) + 3 * len(plan.overload)
    micro = len(plan.buckets) + 3 + len(plan.aging) + len(plan.latencies) + len(plan.bandwidths)
    small = sum(subject.name in plan.micro for subject in subjects)
    return len(plan.seeds) * rates + len(plan.few) * (fleets * len(subjects) + micro * small)


def fleet_rows(fleets: Sequence[dict]) -> list[dict]:
    """Return, by fleet size, the mean over workloads of what Kairos saves.

    The savings are those of the whole system and of the scheduler alone.
    """
    at = {(r['workload'], r['robots'], r['horizon'], r['scheduler']): r for r in fleets}
    names = list(dict.fromkeys(row['workload'] for row in fleets))
    rows = []
    for robots in dict.fromkeys(row['robots'] for row in fleets):
        row = dict(robots=robots)
        for baseline in BASELINES:
            for label, horizon in (('kairos', 'dynamic'), ('equal horizons', 'static')):
                row[f'{label} against {baseline}'] = float(
                    np.mean(
                        [
                            saved(
                                at[name, robots, horizon, 'kairos'],
                                at[name, robots, 'static', baseline],
                            )['average']['saved']
                            for name in names
                        ]
                    )
                )
        rows.append(row)
    return rows


def place_rows(places: Sequence[dict]) -> list[dict]:
    """Return, by workload and rate, what hybrid saves against edge alone and cloud alone."""
    at = {(row['workload'], row['share'], row['where']): row for row in places}
    return [
        dict(workload=name, share=share)
        | {
            f'against {where}': saved(row, at[name, share, where])['average']['saved']
            for where in ('edge', 'cloud')
        }
        | dict(cloud_share=row['cloud'])
        for (name, share, where_), row in at.items()
        if where_ == 'hybrid'
    ]
