"""A witness between the director and a live simulator: a new scene where one is asked for."""

import subprocess
import sys
import time

import pytest
from rclpy.executors import SingleThreadedExecutor

from embodied_kv.nodes.demo.director import Director
from embodied_kv.nodes.demo.monitor import Monitor
from embodied_kv.sim.tasks import task_scene

SEED = 2_000_000
PATIENCE = 60.0  # s


@pytest.fixture
def sim():
    process = subprocess.Popen(
        [sys.executable, '-m', 'embodied_kv.nodes.sim.node', '--ros-args']
        + ['-r', '__ns:=/test_scenes', '-p', f'seed:={SEED}', '-p', 'image_size:=48']
    )
    yield process
    process.terminate()
    process.wait(PATIENCE)


@pytest.fixture
def witness(ros):
    node = Monitor('test_scenes', task_scene('put'))
    yield node
    node.destroy_node()


def test_a_task_is_told_in_the_next_scene_of_the_simulator(sim, witness):
    director = Director(
        0,
        tell=witness.tell,
        ask=witness.ask,
        reset=witness.reset,
        hindrance=lambda task, moment: '',
        fresh=True,
    )
    executor = SingleThreadedExecutor()
    executor.add_node(witness)
    end, moments = time.monotonic() + PATIENCE, []
    while not director.told:
        assert sim.poll() is None and time.monotonic() < end
        executor.spin_once(timeout_sec=0.1)
        while witness.moments:
            moments.append(witness.moments.popleft())
            director.see(moments[-1])
    executor.shutdown()
    assert [moments[0].scene, moments[-1].scene] == [SEED, SEED + 1]
    told = director.told[0]
    assert told.scene == SEED + 1 and witness.instruction == told.instruction
    assert told.task.target in {thing.name for thing in moments[-1].truth.things}
