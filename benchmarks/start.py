"""How long the suite takes to start: its imports, and from the launch to the last active node.

The import of `embodied_kv.nodes.robot`, in turn with that of the libraries that it cannot do
without (the floor: interpreter, torch, NumPy, OpenCV, rclpy), each in a process of its own. Then
the process `robot` with the shipped parameters (the simulated robot's policy), from its launch
until `get_state` of every node answers `active`: eager, and with what is compiled for this machine
(`make compile` before; otherwise `auto` traces each computation that is not compiled yet).

Physics: reading files and executing module bodies; one core, since Python has one lock.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import rclpy
from lifecycle_msgs.srv import GetState
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor

from benchmarks.common import report
from benchmarks.common.command import BenchmarkError, command

FLOOR, ROBOT = 'libraries', 'nodes.robot'
IMPORTS = {
    FLOOR: 'import torch, numpy, cv2, rclpy',
    ROBOT: 'import embodied_kv.nodes.robot',
}
NODES = 'perception', 'action', 'language', 'session', 'memory', 'mission', 'recorder'
WAYS = 'off', 'auto'  # of engine.compile
LONGEST = 300.0  # s that a start may take
ACTIVE = 3  # lifecycle_msgs/State.PRIMARY_STATE_ACTIVE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument('--repeats', type=int, default=5, help='of each import and start')


def import_seconds(code: str) -> float:
    """Return the wall seconds of a Python process that executes `code` and ends at once."""
    began = time.perf_counter()
    subprocess.run([sys.executable, '-c', f'{code}; import os; os._exit(0)'], check=True)
    return time.perf_counter() - began


def start_seconds(params: Path, way: str, log: Path) -> float:
    """Return the seconds from the launch of `robot` until its last node is active.

    Raises BenchmarkError if it ends before, or takes longer than LONGEST.
    """
    namespace = f'/start_{os.getpid()}_{way}'
    own = log.with_name('start.yaml')  # `-p` would yield to the shipped parameters
    own.write_text(f'/**:\n  ros__parameters:\n    engine.compile: "{way}"\n')
    words = ['--params-file', str(params), '--params-file', str(own), '-r', f'__ns:={namespace}']
    context = Context()
    rclpy.init(context=context)
    node = rclpy.create_node('start', context=context, namespace=namespace)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    waiting = {name: node.create_client(GetState, f'{name}/get_state') for name in NODES}
    began = time.perf_counter()
    with log.open('wb') as output:
        robot = subprocess.Popen(
            [sys.executable, '-m', 'embodied_kv.nodes.robot', '--ros-args', *words],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        while waiting:
            if robot.poll() is not None or time.perf_counter() - began > LONGEST:
                raise BenchmarkError(
                    f'the nodes {", ".join(waiting)} did not become active: see {log}'
                )
            executor.spin_once(timeout_sec=0.02)
            for name, client in list(waiting.items()):
                if client.service_is_ready() and _state(executor, client) == ACTIVE:
                    del waiting[name]
        return time.perf_counter() - began
    finally:
        robot.terminate()
        robot.wait()
        executor.shutdown()
        node.destroy_node()
        rclpy.shutdown(context=context)


def _state(executor: SingleThreadedExecutor, client: rclpy.client.Client) -> int:
    future = client.call_async(GetState.Request())
    executor.spin_until_future_complete(future, timeout_sec=1.0)
    return future.result().current_state.id if future.done() else 0


def run(args: argparse.Namespace) -> dict:
    """Measure imports and starts, in turn."""
    for code in IMPORTS.values():
        import_seconds(code)  # warm-up: from the disk, and compiled to bytecode
    rounds = [[import_seconds(code) for code in IMPORTS.values()] for _ in range(args.repeats)]
    imports = dict(zip(IMPORTS, map(statistics.median, zip(*rounds, strict=True)), strict=True))
    report.OUT.mkdir(parents=True, exist_ok=True)
    params = Path(__file__).resolve().parent.parent / 'config' / 'robot.yaml'
    starts = {way: [] for way in WAYS}
    for _ in range(args.repeats):
        for way, taken in starts.items():
            taken.append(start_seconds(params, way, report.OUT / 'start.log'))
    medians = {way: statistics.median(taken) for way, taken in starts.items()}
    if not args.json:
        rows = [dict(what=f'import {name}', seconds=s) for name, s in imports.items()]
        rows += [dict(what=f'start, engine.compile: {w}', seconds=s) for w, s in medians.items()]
        report.show('Median of each', rows)
    return {
        'imports_s': imports,
        'import_ratio': imports[ROBOT] / imports[FLOOR],
        'starts_s': medians,
        'starts_all_s': starts,
    }


main = command('start', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
