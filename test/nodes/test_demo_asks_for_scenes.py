"""The director requests a new scene from a live simulator, through the monitor."""

import subprocess
import sys
import time

import pytest
from rclpy.executors import SingleThreadedExecutor

from embodied_kv.demo.director import Director
from embodied_kv.demo.monitor import Monitor
from embodied_kv.demo.sim.tasks import task_scene
from embodied_kv.msg import TextDelta
from embodied_kv.srv import KvForget

SEED = 2_000_000
PATIENCE = 60.0  # s


@pytest.fixture
def sim():
    process = subprocess.Popen(
        [sys.executable, '-m', 'embodied_kv.demo.nodes.node', '--ros-args']
        + ['-r', '__ns:=/test_scenes', '-p', f'seed:={SEED}', '-p', 'image_size:=48']
    )
    yield process
    process.terminate()
    process.wait(PATIENCE)


@pytest.fixture
def monitor(ros):
    node = Monitor('test_scenes', task_scene('put'))
    yield node
    node.destroy_node()


def test_the_monitor_keeps_the_parameters_of_a_node(monitor):
    assert 'use_sim_time' in monitor.list_parameters([], 0).names


def test_texts_of_a_new_process_are_texts_of_their_own(monitor):
    said = TextDelta(stream=1, query='Subtask:', text='lift', reason='eos', tokens=1)
    monitor._on_text(said)
    monitor.begin_process()
    monitor._on_text(TextDelta(stream=1, query='Subtask:', text='carry', reason='eos', tokens=1))
    assert [words.text for words in monitor.streams.values()] == ['lift', 'carry']
    assert monitor.newest['Subtask:'].text == 'carry'


def test_a_task_is_told_in_the_next_scene_of_the_simulator(sim, monitor):
    director = Director(
        0,
        tell=monitor.tell,
        ask=monitor.ask,
        reset=monitor.reset,
        hindrance=lambda task, moment: '',
        fresh=True,
    )
    forgotten = []

    def forget(request, response):
        forgotten.append(list(request.sequences))
        return response

    monitor.create_service(KvForget, 'kv/forget', forget)
    executor = SingleThreadedExecutor()
    executor.add_node(monitor)
    end, moments = time.monotonic() + PATIENCE, []
    while not director.told:
        assert sim.poll() is None and time.monotonic() < end
        executor.spin_once(timeout_sec=0.1)
        while monitor.moments:
            moments.append(monitor.moments.popleft())
            director.add_moment(moments[-1])
    while not forgotten and time.monotonic() < end:
        executor.spin_once(timeout_sec=0.1)
    executor.shutdown()
    assert forgotten == [[]], 'memory rows of the last scene'
    assert [moments[0].scene, moments[-1].scene] == [SEED, SEED + 1]
    told = director.told[0]
    assert told.scene == SEED + 1 and monitor.instruction == told.instruction
    assert told.task.target in {thing.name for thing in moments[-1].truth.things}
