"""Measure how far an arm that is moved by velocities travels after a process fails.

A stand-in for the action node moves one joint at a constant velocity, through the outputs of the
real action node and the real command watchdog, each in its own process. The controller keeps its
last value; the arm follows it ideally. A signal kills or suspends one of the processes. The run-on
is the time and the distance from the signal until the controller holds zero.

Physics: if the action node fails, the watchdog waits max(60 ms, 2.5 set-point periods) from the
last set-point on, so the run-on is at most that time plus one wake-up. If the watchdog fails, the
action node waits until the newest heartbeat is 250 ms old, and its next set-point becomes zero.
The distance is the velocity times this time. Without the watchdog nothing ends the motion: its row
shows the 2 s that were observed.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.common import report
from benchmarks.common.command import BenchmarkError, command
from benchmarks.watchdog import stand_ins

ACTION, WATCHDOG = 'action node', 'watchdog'
CASES = tuple((who, how) for who in (ACTION, WATCHDOG) for how in ('SIGKILL', 'SIGSTOP'))
CONTRACT = 'franka'
PATIENCE = 60.0  # s until the arm moves
OBSERVED = 2.0  # s after a signal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this benchmark."""
    parser.add_argument('--kills', type=int, default=20, help='in all, over four cases')
    parser.add_argument('--speed', type=float, default=1.5, help='of the joint, rad/s')
    parser.add_argument('--rate', type=float, default=100.0, help='set-points per second')
    parser.add_argument('--quick', action='store_true', help='one kill of each case')


@contextmanager
def isolated() -> Iterator[None]:
    """Start ROS in a domain of this process, on this machine."""
    before = dict(os.environ)
    os.environ['ROS_DOMAIN_ID'] = str(1 + os.getpid() % 100)
    os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
    try:
        with stand_ins.ros():
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def kill(who: str, how: str, speed: float, rate: float, way: str) -> dict[str, float]:
    """Return the run-on of one failure: s and rad. Raises BenchmarkError if the arm is at rest."""
    namespace = f'/watchdog_{uuid.uuid4().hex[:8]}'
    with ExitStack() as stack:
        controller = stack.enter_context(stand_ins.controller(namespace, CONTRACT))
        processes = {}
        if way == stand_ins.WATCHED:
            processes[WATCHDOG] = stand_ins.watchdog_process(namespace, CONTRACT)
        processes[ACTION] = stand_ins.action_process(namespace, CONTRACT, speed, rate, way)
        for process in processes.values():
            stack.callback(process.close)
        if not controller.wait(lambda: controller.speed == speed, PATIENCE):
            raise BenchmarkError('the arm does not move: ' + processes[ACTION].text[-500:])
        since = processes[who].signal(getattr(signal, how))
        time.sleep(OBSERVED)
        seconds, way_gone = controller.run_on(since, time.monotonic())
        return dict(run_on_s=seconds, run_on_rad=way_gone)


def run(args: argparse.Namespace) -> dict:
    """Measure every case in turn, print the table, and return all figures."""
    rounds = 1 if args.quick else max(1, args.kills // len(CASES))
    found: dict[tuple[str, str], list[dict[str, float]]] = {case: [] for case in CASES}
    with isolated():
        for _ in range(rounds):
            for case, runs in found.items():
                runs.append(kill(*case, args.speed, args.rate, stand_ins.WATCHED))
        without = kill(ACTION, 'SIGKILL', args.speed, args.rate, stand_ins.DIRECT)
    rows = [summary(*case, True, runs) for case, runs in found.items()]
    rows.append(summary(ACTION, 'SIGKILL', False, [without]))
    worst = max(row['run_on_s_max'] for row in rows[:-1])
    if not args.json:
        note = f'at {args.speed} rad/s and {args.rate:g} set-points/s; worst run-on {worst:.3f} s'
        report.show('watchdog: run-on after a failure', rows, note)
    return dict(speed=args.speed, rate=args.rate, rows=rows, worst_run_on_s=worst)


def summary(who: str, how: str, watched: bool, runs: list[dict[str, float]]) -> dict:
    """Return a row: median and maximum of all runs of a case."""
    row = dict(failed=who, signal=how, watchdog=watched, kills=len(runs))
    for name in ('run_on_s', 'run_on_rad'):
        values = [run[name] for run in runs]
        row |= {f'{name}_median': statistics.median(values), f'{name}_max': max(values)}
    return row


main = command('watchdog', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
