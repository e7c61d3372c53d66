"""Runs of the demo with different seeds, next to processes that load the CPU.

Each run is a process `python -m embodied_kv.demo`, as `make demo` starts it: tasks, a memory
question and a mission. The table states for each seed what the robot did. On two slow cores,
compile before (`make compile`); otherwise no time is left for language.

Physics: the robot, the simulator and the demo share the cores with `--busy` processes. A mission
needs the policy to move one object; each of its steps ends when the success question is answered.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.common import report
from benchmarks.common.command import command
from benchmarks.common.workers import environment
from training.evaluate.report import wilson

LONGEST = 900.0  # s of a run
TARGET = 0.9  # share of the missions that are to be carried out


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument('--runs', type=int, default=20, help='each with a seed of its own')
    parser.add_argument('--first-seed', type=int, default=1_000_100, help='of the first run')
    parser.add_argument('--seconds', type=float, default=10.0, help='of tasks before the mission')
    parser.add_argument('--busy', type=int, default=0, help='processes that burn processor time')


@contextmanager
def busy(count: int) -> Iterator[list[subprocess.Popen]]:
    """Run `count` processes that load the CPU until the end of the block, and yield them."""
    burning = [subprocess.Popen([sys.executable, '-c', 'while True: pass']) for _ in range(count)]
    try:
        yield burning
    finally:
        for process in burning:
            process.kill()
            process.wait()


def one(seed: int, seconds: float, out: Path) -> dict:
    """Return the row of one run."""
    words = ['--seed', str(seed), '--seconds', str(seconds), '--out', str(out), '--no-table']
    out.mkdir(parents=True, exist_ok=True)
    began, log = time.monotonic(), out / 'log.txt'
    with log.open('wb') as output:
        process = subprocess.Popen(
            [sys.executable, '-m', 'embodied_kv.demo', *words],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(),
            start_new_session=True,
        )
        try:
            status = process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also what it started
            process.wait()
    row = dict(seed=seed, status=status, wall_s=time.monotonic() - began)
    row['load'] = os.getloadavg()[0]
    if status != 0:
        return row | dict(mission=f'no report, see {log}', done=False, right=False)
    return row | summary(json.loads((out / 'report.json').read_text()))


def summary(found: Mapping) -> dict:
    """Return the row of a report.json."""
    mission, counts = found['mission'], found['counts']
    tasks = found['tasks done']
    return dict(
        tasks=f'{tasks["done"]} of {tasks["told"]}',
        missed=f'{counts["deadlines missed"]} of {counts["commands"]}',
        memory=bool(found['memory'].get('right')),
        mission=mission.get('told') or mission['refused'],
        steps=len(mission.get('steps', ())),
        seconds=mission.get('seconds', 0.0),
        done=bool(mission.get('done')),
        right=bool(mission.get('right')),
        end=mission.get('message', ''),
    )


def run(args: argparse.Namespace) -> dict:
    """Run the demo with each seed."""
    seeds = range(args.first_seed, args.first_seed + args.runs)
    with busy(args.busy):
        rows = [one(seed, args.seconds, report.OUT / 'demo' / str(seed)) for seed in seeds]
    done = sum(row['done'] for row in rows)
    if not args.json:
        report.show(f'{args.runs} runs beside {args.busy} busy processes', rows)
    return dict(
        missions_done=done,
        runs=len(rows),
        interval=wilson(done, len(rows)),
        target=TARGET,
        met=done >= TARGET * len(rows),
        rows=rows,
    )


main = command('demo', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
