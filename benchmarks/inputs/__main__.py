"""CPU time to observe a real robot, and how often there is a complete observation.

Drivers in one process publish 640 x 480 images and joint states, 500 a second of a six-joint arm
and 50 of a gripper; another process listens with the input side of a perception node, up to the
pixels of each frame. CPU is that process's share of one core. Joint states are taken in three
ways: when a frame requests them (the product), by a callback for each, and not at all.

Physics: a raw image is 0.9 MB, and rclpy copies it several times; a joint state is some 200 bytes.
What a callback costs is the executor's wake-up, not the message: the executor builds the wait set
from scratch, in Python, over every entity of the node. A frame needs one state, so n joint states
a second cost n wake-ups where each calls back, and n times the taking alone where they wait until
they are requested. Two cameras of one rate with an offset of t give observations whose images are
t apart, at most half a period; if one camera is late, the images of the other wait.

Fast DDS is given 16 MiB of shared memory; a row shows what is lost with its default of 512 KiB,
less than one image. Other middlewares have buffers of their own: both are then the same.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import uuid
from collections.abc import Mapping

from benchmarks.common import report
from benchmarks.common.command import BenchmarkError, command
from benchmarks.common.workers import check_status, environment
from benchmarks.inputs.rigs import RIGS, Rig, roomy

WAYS = 'none', 'called', 'asked'
FIRST = next(iter(RIGS))
HERE = 'benchmarks.inputs'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument('--seconds', type=float, default=10.0, help='that each run is measured')
    parser.add_argument('--rate', type=float, default=10.0, help='frames a second that are asked')
    parser.add_argument('--quick', action='store_true', help='3 s a run')


def measure(rig: Rig, way: str, rate: float, seconds: float, variables: Mapping[str, str]) -> dict:
    """Run both processes once. Raises BenchmarkError if the listener failed.

    variables: of their environment, in addition to those of this process.
    """
    namespace, env = f'/inputs_{uuid.uuid4().hex[:8]}', environment(**variables)
    words = [namespace, rig.to_json()]
    drivers = subprocess.Popen([sys.executable, '-m', f'{HERE}.robot', *words], env=env)
    try:
        line = [sys.executable, '-m', f'{HERE}.listener', *words, way, str(rate), str(seconds)]
        run = subprocess.run(line, stdout=subprocess.PIPE, text=True, env=env)
        check_status('the process of the drivers', drivers.poll())
    finally:
        drivers.terminate()
        drivers.wait()
    if run.returncode:
        raise BenchmarkError(f'the listener failed with exit status {run.returncode}: see above')
    return json.loads(run.stdout.splitlines()[-1])


def run(args: argparse.Namespace) -> dict:
    """Measure every rig, print the table, and return all figures."""
    seconds = 3.0 if args.quick else args.seconds
    runs = [(name, way, True) for name in RIGS for way in (WAYS if name == FIRST else WAYS[-1:])]
    runs.append((FIRST, WAYS[-1], False))
    rows = []
    variables = roomy()
    for name, way, has_room in runs:
        found = measure(RIGS[name], way, args.rate, seconds, variables if has_room else {})
        rows.append(dict(rig=name, joint_states=way, room=has_room) | found)
    cost = {row['joint_states']: row['cpu'] for row in rows if row['rig'] == FIRST and row['room']}
    ratio = (cost['called'] - cost['none']) / max(1e-9, cost['asked'] - cost['none'])
    if not args.json:
        note = f'joint states cost {ratio:.1f} times as much by callbacks as when asked for'
        report.show('inputs: 640 x 480 images, 550 joint states a second', rows, note)
    return dict(rate=args.rate, seconds=seconds, rows=rows, joints_called_over_asked=ratio)


main = command('inputs', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
