"""Memory and its computed KV survive when the robot process is killed and restarted."""

import json
import os
import signal
import subprocess
import sys

import pytest
from memory_suite import QUESTION, TABLE, done, parameters, segments, texts

from embodied_kv.srv import MemoryStats

GIVEN = {
    'contract': 'tabletop',
    'preset': 'tiny',
    'checkpoint': 'random',
    'control_frequency': 5.0,
    'instruction': 'reach',
}


def active(robot):
    """Return whether the memory node is active; it may not exist."""
    client = robot.node.create_client(MemoryStats, 'memory/stats')
    try:
        future = client.call_async(MemoryStats.Request()) if client.service_is_ready() else None
        robot.spin(0.2)
        return future is not None and future.done() and future.result().success
    finally:
        robot.node.destroy_client(client)


@pytest.fixture
def start(robot, tmp_path):
    started = []

    def begin():
        given = GIVEN | parameters(tmp_path)
        words = [f'{name}:={json.dumps(value)}' for name, value in given.items()]
        command = [sys.executable, '-m', 'embodied_kv.nodes.robot', '--ros-args']
        command += ['-r', f'__ns:={robot.namespace}', *(w for p in words for w in ('-p', p))]
        with (tmp_path / f'{len(started)}.log').open('w') as log:
            environment = {**os.environ, 'OMP_NUM_THREADS': '1'}
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        started.append(process)
        robot.until(lambda: active(robot), show=False)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_killed_and_started_again_it_plans_the_same(robot, start):
    process = start()
    done(robot, 'upsert', segments=segments(*TABLE))
    before = done(robot, 'plan', question=QUESTION)
    process.send_signal(signal.SIGKILL)
    process.wait()
    start()
    assert texts(robot) == {id: text for id, _, text in TABLE}
    after = done(robot, 'plan', question=QUESTION)
    assert (after.text, after.units_computed) == (before.text, 0)
    assert after.segments == before.segments and after.computed == before.computed
