"""The spread of rounds between tasks, chosen so that the baselines relate as in the paper.

The paper does not state how long its tasks are, and least attained service (Autellix) depends on
that: where lengths vary little it is worse than FIFO, where they vary much it is better. Table 2
implies Autellix' average over FIFO's at the highest rate: what Kairos leaves of FIFO's over what
it leaves of Autellix', 1.02 to 1.09. A workload is a valid test bed if our ratio lies there too,
at HIGHEST times the peak.

Rule: of the coefficients of variation of SWEEP that pass the GATE, take the one whose ratio is
nearest to the paper's for this workload. If none passes, take the nearest of all, and mark the
workload as not valid. The peak, where FIFO's average is three times the unloaded one, is searched
at a CV of START. Rates are the same through the sweep, as the mean load is, so at the chosen CV
FIFO may be above or below that at the peak. Tasks and arrivals have seeds that the benchmark does
not use. No other scheduler is considered. Often several CVs pass: which of them is taken is our
rule's choice, not the paper's (`benchmarks.fleet --cv` shows its effect).

Physics: where all tasks have equally many rounds, serving the task with the least attained service
keeps all of them until the end, and the newest pushes the others back; where few tasks have most
of the rounds, it lets the many short ones go first.

The output is benchmarks/fleet/calibration.yaml: `--out` writes it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from benchmarks.common import report
from benchmarks.common.command import command
from benchmarks.fleet import workload
from benchmarks.fleet.paper import TABLE
from benchmarks.fleet.runs import HIGHEST, Bench, Plan
from benchmarks.fleet.subject import Subject
from benchmarks.fleet.workload import Common, Workload
from embodied_kv.fleet.schedulers import Fifo, LeastAttained

SWEEP = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
START = 0.5  # of the sweep: where the peak is searched
GATE = (1.02, 1.09)  # Autellix' average over FIFO's, rounded as the paper's
PLAN = Plan(tasks=100, span=40.0, seeds=(101, 102, 103, 104), halvings=7)

HEADER = """\
# Written by `python -m benchmarks.fleet.calibrate --out FILE`; not by hand.
# cv: of the rounds of a task. peak: tasks/s at which FIFO's average is three times the unloaded
# one at a cv of 0.5. ratio: Autellix' average over FIFO's at three times the peak, on most
# workloads a burst (`benchmarks.fleet` prints it for each); paper: the same of its Table 2, at its
# highest rate. valid: whether ratio, rounded to two places, lies in 1.02 to 1.09.
"""


def papers(name: str) -> float:
    """Return Autellix' average over FIFO's at the highest rate, as Table 2 implies it."""
    of_fifo, of_autellix = (TABLE[baseline][name][0][1] for baseline in ('fifo', 'autellix'))
    return (100 - of_fifo) / (100 - of_autellix)


def sweep(bench: Bench, given: Workload, common: Common) -> tuple[float, list[dict]]:
    """Return the peak, and for every CV the ratio at the highest rate."""
    peak = bench.peak(Subject.of(replace(given, cv=START), common))['peak']
    rows = []
    for cv in SWEEP:
        subject = Subject.of(replace(given, cv=cv), common)
        autellix, fifo = (
            bench.mean(subject, policy, 'static', peak * HIGHEST)['average']
            for policy in (LeastAttained(), Fifo())
        )
        rows.append(dict(cv=cv, ratio=autellix / fifo))
    return peak, rows


def passes(ratio: float) -> bool:
    """Return whether a ratio passes the gate."""
    return GATE[0] <= round(ratio, 2) <= GATE[1]


def choose(rows: Sequence[dict], paper: float) -> dict:
    """Apply the rule: return a row of the sweep, with whether the workload is valid."""
    passed = [row for row in rows if passes(row['ratio'])]
    nearest = min(passed or rows, key=lambda row: abs(row['ratio'] - paper))
    return nearest | dict(valid=bool(passed))


def entry(name: str, peak: float, rows: Sequence[dict]) -> dict:
    """Return the entry of a workload in the file, with four digits."""
    paper = papers(name)
    found = dict(peak=peak) | choose(rows, paper) | dict(paper=paper)
    return {k: v if isinstance(v, bool) else float(f'{v:.4g}') for k, v in found.items()}


def line(name: str, rows: Sequence[dict], chosen: dict) -> dict:
    """Return the row of a workload in the table."""
    ratios = {f'{row["cv"]:g}': f'{row["ratio"]:.2f}' for row in rows}
    paper = f'{chosen["paper"]:.2f}'
    return dict(workload=name) | ratios | dict(paper=paper, cv=chosen['cv'], valid=chosen['valid'])


def text(chosen: dict) -> str:
    """Return the content of the file."""
    return HEADER + yaml.safe_dump(dict(workloads=chosen), sort_keys=False)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument('--out', type=Path, help='file for the choices')


def run(args: argparse.Namespace) -> dict:
    """Sweep every workload, choose, print the table, and return all figures."""
    common, workloads = workload.read()
    bench = Bench(PLAN, lambda: None)
    swept = {each.name: sweep(bench, each, common) for each in workloads}
    chosen = {name: entry(name, *found) for name, found in swept.items()}
    if args.out:
        args.out.write_text(text(chosen))
    if not args.json:
        report.show(
            f"fleet.calibrate: Autellix' average over FIFO's at {HIGHEST:g} times the peak",
            [line(name, rows, chosen[name]) for name, (_, rows) in swept.items()],
            'by the coefficient of variation of rounds',
        )
    sweeps = {name: rows for name, (_, rows) in swept.items()}
    return dict(gate=GATE, chosen=chosen, sweeps=sweeps)


main = command('fleet.calibrate', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
