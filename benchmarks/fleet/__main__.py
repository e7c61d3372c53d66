"""Many robots on one engine: Kairos compared with FIFO and Autellix, simulated.

Task latency (first request to last action) by arrival rate, fleet size, place, network and
setting, next to what the paper reports; and the cost of a decision. The workloads and the
provenance of their numbers: benchmarks/fleet/workloads.yaml; which of them are valid test beds,
and their peaks: calibration.yaml (`benchmarks.fleet.calibrate`).

Baselines and Kairos with equal horizons show the effect of the order alone. "kairos, pending" also
counts the wait that is not over yet.

Physics: an engine serves at most saturation / latency(saturation) rounds a second; a task asks for
actions / H of them. Below that rate no robot waits for long, and the order hardly matters. At the
peak (FIFO's average is three times the unloaded one, at a CV of 0.5) work piles up, and an order
can only choose which robot waits; a longer horizon takes away load itself. If the highest rate is
far above the capacity, all tasks have come long before most are done: the measurement is then of a
burst that is drained, not of a fleet in a steady state. Lengths of tasks, generation times and
observation sizes are ours: compare signs and orders of magnitude with the paper, not digits.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.common import report
from benchmarks.common.command import BenchmarkError, command
from benchmarks.fleet import plots, workload
from benchmarks.fleet.compare import AIMS, BASELINES, TOLERANCE
from benchmarks.fleet.measure import fleet_rows, measure, place_rows
from benchmarks.fleet.paper import FLEET, HYBRID, SYSTEMS
from benchmarks.fleet.runs import HIGHEST, PENDING, PLANS, POLICIES, SHORT
from benchmarks.fleet.subject import Subject
from embodied_kv.fleet import profile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument('--quick', action='store_true', help='one seed, fewer tasks and rates')
    parser.add_argument('--workloads', nargs='+', help='by their names; left out: all eight')
    parser.add_argument('--cv', type=float, help='of rounds, in place of the calibrated ones')
    parser.add_argument('--trace', help='a recorded trace, served beside the workloads')
    parser.add_argument('--profile', help='the profile of the engine that serves the trace')


def run(args: argparse.Namespace) -> dict:
    """Simulate, print the tables, and return all figures."""
    if bool(args.trace) != bool(args.profile):
        raise BenchmarkError('--trace and --profile belong together')
    common, workloads = workload.read()
    if args.cv is not None:
        if not 0.05 <= args.cv <= 2:
            raise BenchmarkError('--cv is from 0.05 to 2')
        workloads = [replace(each, cv=args.cv, valid=None) for each in workloads]
    names = [each.name for each in workloads]
    if odd := set(args.workloads or ()) - set(names):
        raise BenchmarkError(
            f'no workload {", ".join(sorted(odd))}; there are: {", ".join(names)}'
        )
    subjects = [
        Subject.of(each, common)
        for each in workloads
        if not args.workloads or each.name in args.workloads
    ]
    if args.trace:
        subjects.append(Subject.recorded(args.trace, profile.read(args.profile), common))
    found = measure(subjects, PLANS['quick' if args.quick else 'full'], args.json)
    if not args.json:
        show(found)
    plots.plot(found)
    return dict(quick=args.quick, **found)


def show(found: dict) -> None:
    """Print the tables."""
    report.show(
        f'fleet: peaks, tasks/s, and what {HIGHEST:g} times as much is to the engine',
        found['peaks'],
        'cv: of the rounds of a task. valid: baselines stand to each other as in the paper. over: '
        'rate / capacity; so many tasks arrive in so many s, and are so many s of work: a burst '
        'where these are far apart',
    )
    report.show(
        "fleet: Autellix' average over FIFO's, equal horizons, by share of the peak",
        found['gate'],
        'the paper, at its highest rate: 1.02 to 1.09',
    )
    report.show(
        'fleet: what the order alone saves of FIFO at the highest rate, %',
        [_aims(row) for row in found['aims']],
        f'aims: at least {AIMS}, undecided where the interval holds them; never worse: than a '
        f'baseline at any rate by more than {TOLERANCE:g}%. In brackets 95%, paired',
    )
    for baseline in BASELINES:
        report.show(
            f'fleet: % of latency saved against {baseline} at the highest rate: '
            'P25 / average / P95',
            [_line(row) for row in found['table'] if row['against'] == baseline],
            'paper: its Table 2. Baselines have static horizons. Negative: worse.',
        )
    report.show(
        'fleet: average s, equal horizons, by share of the peak',
        _equal(found['online']),
        ' / '.join(POLICIES),
    )
    if found['short']:
        report.show(
            f'fleet: tasks of at most {SHORT} rounds at the highest rate, equal horizons',
            found['short'],
            'share: of all tasks; mean latency, s, by order',
        )
    if found['worse']:
        report.show(
            f'fleet: where Kairos is worse by more than {TOLERANCE:g}%, horizons equal',
            found['worse'],
            'saved: %; sure: the whole 95% interval is below 0',
        )
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
        if found[key]:
            report.show(f'fleet: {key}, task latency in s', found[key])
    report.show('fleet: one decision, microseconds, 8 served', found['decisions'])


def _line(row: dict) -> dict:
    line = dict(workload=row['workload'])
    for system in (*SYSTEMS, PENDING):
        line[system] = ' / '.join(f'{figure["saved"]:.0f}' for figure in row[system].values())
        if paper := row.get(f'{system}, paper'):
            line[f'{system}, paper'] = ' / '.join(f'{value:.0f}' for value in paper.values())
    return line


def _aims(row: dict) -> dict:
    text = '{saved:.0f} ({low:.0f} to {high:.0f})'
    return {k: text.format(**v) if isinstance(v, dict) else v for k, v in row.items()}


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
