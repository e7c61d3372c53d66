"""Measure how far a simulated arm moves after faults, for three kinds of controllers.

The real `remote_robot` process moves the first joint of an arm at 1 rad/s; a policy server
stand-in returns the chunks. The controllers are simulated at 250 Hz: a joint trajectory controller
(JTC) and a forward position controller with the contract ur5e, and a forward velocity controller
with the contract franka and the real `command_watchdog` process. Each fault has a process of its
own. Distances count from the fault, or from the end of a fault that holds the arm.

Physics: an arm that brakes at acceleration a from velocity v moves v²/(2 a), and needs v/a: 0.06
rad and 0.13 s for ur5e, 0.03 rad and 0.07 s for franka. A command is at most one service call and
one control period late. When the process dies, a JTC completes the trajectory that it has
received, at most max_open_loop (1 s); a position controller holds its last position; the watchdog
sends zeros after 60 ms. Without fresh chunks the arm executes its chunk until missed_chunk_limit
(5) control periods of 0.1 s are missed.
"""

from __future__ import annotations

import argparse
import time

from benchmarks.common import report
from benchmarks.common.command import BenchmarkError, command
from benchmarks.safety.faults import FAULTS, Fault
from benchmarks.safety.world import (
    JTC,
    KINDS,
    POSITIONS,
    SPEED,
    VELOCITIES,
    Kind,
    World,
    isolated,
)

QUICK = (
    ('takeover, stop after 50 ms', JTC),
    ('SIGKILL', JTC),
    ('arm blocked for 2 s, released', POSITIONS),
    ('SIGKILL', VELOCITIES),
)
SHOWN = 60  # characters of a reason in the table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this benchmark."""
    names = [fault.name for fault in FAULTS]
    kinds = [kind.name for kind in KINDS]
    parser.add_argument('--fault', choices=names, metavar='NAME', help='only this one')
    parser.add_argument('--kind', choices=kinds, help='only this kind of controller')
    parser.add_argument('--quick', action='store_true', help='four runs')


def trial(fault: Fault, kind: Kind) -> dict:
    """Inject a fault into a world of its own, and return what the arm did."""
    row = dict(fault=fault.name, kind=kind.name)
    with World(kind, lambda robot: fault.policy(kind, robot)) as world:
        refusal = fault.inject(world)
        time.sleep(fault.observe)
        motion, (state, reason) = world.motion(), world.state
        outcome = 'at rest' if motion.rests else f'moves after {fault.observe:g} s'
        return row | dict(
            outcome='refused' if refusal else outcome,
            distance_rad=motion.distance,
            rest_s=motion.rest if motion.rests else None,
            speed_of_limit=motion.speed,
            reported_s=world.reported(),
            state=state,
            reason=refusal or reason,
        )


def attempt(fault: Fault, kind: Kind) -> dict:
    """Return the row of a trial; 'not measured' if the arm did not even move before the fault."""
    try:
        return trial(fault, kind)
    except BenchmarkError as error:
        numbers = dict.fromkeys(('distance_rad', 'rest_s', 'speed_of_limit', 'reported_s'))
        row = dict(fault=fault.name, kind=kind.name, outcome='not measured')
        return row | numbers | dict(state='', reason=str(error))


def run(args: argparse.Namespace) -> dict:
    """Run every fault with every kind, print the table, and return all figures."""
    chosen = [(fault, kind) for fault in FAULTS for kind in fault.kinds]
    if args.quick:
        chosen = [(fault, kind) for fault, kind in chosen if (fault.name, kind) in QUICK]
    chosen = [
        (fault, kind)
        for fault, kind in chosen
        if args.fault in (None, fault.name) and args.kind in (None, kind.name)
    ]
    if not chosen:
        raise BenchmarkError('no fault was chosen: this one does not happen to that kind')
    with isolated():
        rows = [attempt(fault, kind) for fault, kind in chosen]
    if not args.json:
        note = 'distance from the fault, or from the end of one that holds the arm'
        report.show('safety: an arm after a fault', [_shown(row) for row in rows], note)
    return dict(speed_rad_s=SPEED, rows=rows)


def _shown(row: dict) -> dict:
    return row | dict(reason=row['reason'][:SHOWN])


main = command('safety', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
