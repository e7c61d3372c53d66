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

from embodied_kv.bench.common import report
from embodied_kv.bench.common.command import Refused, command
from embodied_kv.bench.fleet import plots
from embodied_kv.bench.fleet.measure import fleet_rows, measure, place_rows
from embodied_kv.bench.fleet.paper import FLEET, HYBRID, SYSTEMS
from embodied_kv.bench.fleet.runs import PLANS, Subject
from embodied_kv.fleet import profile, workload


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of this benchmark."""
    parser.add_argument('--quick', action='store_true', help='one seed, fewer tasks and rates')
    parser.add_argument('--trace', help='a recorded trace, served beside the workloads')
    parser.add_argument('--profile', help='the profile of the engine that serves the trace')


def run(args: argparse.Namespace) -> dict:
    """Simulates, prints the tables, and returns all figures."""
    if bool(args.trace) != bool(args.profile):
        raise Refused('--trace and --profile belong together')
    common, workloads = workload.read()
    subjects = [Subject.of(each, common) for each in workloads]
    if args.trace:
        subjects.append(Subject.recorded(args.trace, profile.read(args.profile), common))
    found = measure(subjects, PLANS['quick' if args.quick else 'full'], args.json)
    if not args.json:
        show(found)
    plots.plot(found)
    return dict(quick=args.quick, **found)


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


main = command('fleet', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
