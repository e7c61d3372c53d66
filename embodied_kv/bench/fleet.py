"""Many robots on one engine: Kairos beside FIFO, Autellix and shortest job, simulated.

Task latency (first request to last action) by arrival rate, fleet size, place, network and
setting, beside what the paper reports; and what a decision costs. The workloads and the
provenance of their numbers: embodied_kv/fleet/workloads.yaml.

Physics: an engine serves at most saturation / latency(saturation) rounds a second; a task asks for
actions / H of them. Below that rate nobody waits for long, and the order hardly matters. At
the peak (FIFO's average is three times the unloaded one) work piles up, and an order can only
choose who waits; a longer horizon takes away load itself. Lengths of tasks, generation times and
observation sizes are ours: compare signs and orders of magnitude with the paper, not digits.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from embodied_kv.bench import fleet_plots, report
from embodied_kv.bench.fleet_paper import FLEET, HYBRID, SYSTEMS
from embodied_kv.bench.fleet_runs import (
    PLANS,
    Bench,
    Plan,
    Subject,
    decisions,
    saved,
    table,
    worse,
)
from embodied_kv.fleet import profile, workload


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument('--quick', action='store_true', help='one seed, fewer tasks and rates')
    parser.add_argument('--trace', help='a recorded trace, served beside the workloads')
    parser.add_argument('--profile', help='the profile of the engine that serves the trace')
    parser.add_argument('--json', action='store_true', help='no table, only the line')
    args = parser.parse_args()
    if bool(args.trace) != bool(args.profile):
        parser.error('--trace and --profile belong together')
    return args


def measure(subjects: Sequence[Subject], plan: Plan, quiet: bool) -> dict:
    """Every figure, by experiment."""
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    found = {key: [] for key in ('peaks', 'online', 'fleets', 'places', 'settings', 'networks')}
    with Progress(*columns, disable=quiet) as progress:
        task = progress.add_task('simulations', total=_simulations(subjects, plan))
        bench = Bench(plan, lambda: progress.advance(task))
        for subject in subjects:
            progress.update(task, description=subject.name)
            found['peaks'].append(bench.peak(subject))
            peak = found['peaks'][-1]['peak']
            found['online'] += bench.online(subject, peak)
            found['fleets'] += bench.fleets(subject)
            found['places'] += bench.places(subject, peak)
            if subject.name in plan.micro:
                found['settings'] += bench.settings(subject, peak)
                found['networks'] += bench.networks(subject, peak)
    return found | dict(
        table=table(found['online']), worse=worse(found['online']), decisions=decisions()
    )


def _simulations(subjects: Sequence[Subject], plan: Plan) -> int:
    each = 1 + plan.halvings + 8 * len(plan.shares) + 4 * len(plan.robots) + 3 * len(plan.overload)
    micro = len(plan.buckets) + 3 + len(plan.aging) + len(plan.latencies) + len(plan.bandwidths)
    small = sum(subject.name in plan.micro for subject in subjects)
    return len(plan.seeds) * (each * len(subjects) + micro * small)


def show(found: dict) -> None:
    """Prints the tables."""
    report.show(
        'fleet: rates, tasks/s; unloaded average, s',
        found['peaks'],
        'capacity: rounds the edge serves a second in full batches, over rounds of a task.',
    )
    for baseline in ('fifo', 'autellix'):
        report.show(
            f'fleet: % of latency saved against {baseline} at the peak: P25 / average / P95',
            [_line(row) for row in found['table'] if row['against'] == baseline],
            'paper: its Table 2. Baselines have static horizons. Negative: worse.',
        )
    report.show(
        'fleet: average s, equal horizons, by share of the peak',
        _equal(found['online']),
        'fifo / autellix / shortest / kairos',
    )
    if found['worse']:
        report.show('fleet: where Kairos is worse by more than 1%, average', found['worse'])
    report.show(
        'fleet: closed fleets, % of the average saved by Kairos, mean over the workloads',
        fleet_rows(found['fleets']),
        f'paper, against FIFO and Autellix: {FLEET}',
    )
    report.show(
        'fleet: % of the average that hybrid saves, Kairos, dynamic horizons',
        place_rows(found['places']),
        f'cloud_share: of rounds. Paper, at its highest rate: {HYBRID}',
    )
    for key in ('settings', 'networks'):
        report.show(f'fleet: {key}, task latency in s', found[key])
    report.show('fleet: one decision, microseconds, 8 served', found['decisions'])


def _line(row: dict) -> dict:
    line = dict(workload=row['workload'])
    for system in SYSTEMS:
        for name in (system, f'{system}, paper'):
            if name in row:
                line[name] = ' / '.join(f'{value:.0f}' for value in row[name].values())
    return line


def _equal(online: Sequence[dict]) -> list[dict]:
    rows: dict[tuple, dict] = {}
    for row in online:
        place = rows.setdefault(
            (row['workload'], row['horizon']),
            dict(workload=row['workload'], horizon=row['horizon']),
        )
        key = f'{row["share"]:g}'
        text = f'{row["average"]:.1f}'
        place[key] = f'{place[key]} / {text}' if key in place else text
    return list(rows.values())


def fleet_rows(fleets: Sequence[dict]) -> list[dict]:
    """Per fleet size: the mean over workloads of what Kairos saves, whole and scheduler alone."""
    at = {(r['workload'], r['robots'], r['horizon'], r['scheduler']): r for r in fleets}
    names = list(dict.fromkeys(row['workload'] for row in fleets))
    rows = []
    for robots in dict.fromkeys(row['robots'] for row in fleets):
        row = dict(robots=robots)
        for baseline in ('fifo', 'autellix'):
            for label, horizon in (('kairos', 'dynamic'), ('equal horizons', 'static')):
                row[f'{label} against {baseline}'] = float(
                    np.mean(
                        [
                            saved(
                                at[name, robots, horizon, 'kairos'],
                                at[name, robots, 'static', baseline],
                            )['average']
                            for name in names
                        ]
                    )
                )
        rows.append(row)
    return rows


def place_rows(places: Sequence[dict]) -> list[dict]:
    """Per workload and rate: what hybrid saves against the edge alone and the cloud alone."""
    at = {(row['workload'], row['share'], row['where']): row for row in places}
    return [
        dict(workload=name, share=share)
        | {
            f'against {where}': saved(row, at[name, share, where])['average']
            for where in ('edge', 'cloud')
        }
        | dict(cloud_share=row['cloud'])
        for (name, share, where_), row in at.items()
        if where_ == 'hybrid'
    ]


def main() -> None:
    args = arguments()
    plan = PLANS['quick' if args.quick else 'full']
    common, workloads = workload.read()
    subjects = [Subject.of(each, common) for each in workloads]
    if args.trace:
        subjects.append(Subject.recorded(args.trace, profile.read(args.profile), common))
    found = measure(subjects, plan, args.json)
    if not args.json:
        show(found)
    fleet_plots.plot(found)
    report.save('fleet', dict(bench='fleet', quick=args.quick, machine=report.machine(), **found))


if __name__ == '__main__':
    main()
