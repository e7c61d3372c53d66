"""`FleetServer` retries after errors and stalls of engines; faults of a robot affect it alone."""

import time
from concurrent.futures import Future

import numpy as np
import pytest

from embodied_kv.control.execution_horizon import Static
from embodied_kv.fleet.dispatcher import Dispatcher
from embodied_kv.fleet.engines import EngineState
from embodied_kv.fleet.profile import Profile
from embodied_kv.fleet.protocol import Request, Verdict
from embodied_kv.fleet.schedulers import Fifo
from embodied_kv.serving import fleet_server
from embodied_kv.serving.fleet_server import FleetServer
from embodied_kv.types import ActionChunk, Observation

THREE = Static(3)
PROFILE = Profile('p', (1, 2), (0.01, 0.011), 100)


def chunk(robot):
    return ActionChunk(
        values=np.full((6, 7), float(robot[-1]), np.float32),
        dt=0.1,
        stamp=1,
        deadline=0.0,
        sequence=0,
        steps=4,
        prefill_ms=1.0,
        denoise_ms=1.0,
        updates=np.ones((4, 6), np.float32),
    )


class Engines:
    """Fake engines; the test completes each of their batches."""

    def __init__(self):
        self.batches = []

    def __call__(self, frames, deadline):
        self.batches.append(([frame.robot for frame in frames], Future()))
        return self.batches[-1][1]


@pytest.fixture
def serving(monkeypatch):
    monkeypatch.setattr(fleet_server, 'RETRY', 0.05)
    monkeypatch.setattr('embodied_kv.fleet.engines.GRACE', 0.2)
    engines, heard = Engines(), []
    dispatcher = Dispatcher(Fifo(), [EngineState('here', PROFILE)])
    server = FleetServer(dispatcher, {'here': engines}, lambda *told: heard.append(told))
    server.start()

    def ask(robot, round=0, horizon=THREE):
        seen = Observation((), np.zeros(7, np.float32), 'reach', 1, 0.0, round, robot)
        server.submit(Request(robot, 't', round, 0.0, horizon, 10), seen)

    def answered():
        return [told for told in heard if told[3].verdict not in (Verdict.QUEUED,)]

    yield engines, ask, answered, dispatcher
    server.stop()


def until(happened):
    deadline = time.monotonic() + 5.0
    while not happened():
        assert time.monotonic() < deadline, 'it did not happen'
        time.sleep(0.005)


def test_the_work_of_an_engine_that_fails_is_tried_again(serving):
    engines, ask, answered, dispatcher = serving
    ask('/r1')
    until(lambda: len(engines.batches) == 1)
    engines.batches[0][1].set_exception(RuntimeError('out of memory'))
    until(lambda: len(engines.batches) == 2)
    engines.batches[1][1].set_result([chunk('/r1')])
    until(answered)
    ((robot, _, _, receipt),) = answered()
    assert robot == '/r1' and receipt.verdict is Verdict.ANSWERED
    assert receipt.answer.execution_horizon == 3 and dispatcher.engines['here'].alive


def test_an_engine_that_stalls_may_still_answer(serving):
    engines, ask, answered, dispatcher = serving
    ask('/r1')
    until(lambda: len(engines.batches) == 1)
    until(lambda: not dispatcher.engines['here'].alive)  # overdue
    ask('/r2')
    engines.batches[0][1].set_result([chunk('/r1')])
    until(lambda: len(engines.batches) == 2)
    assert engines.batches[1][0] == ['/r2']
    assert [told[0] for told in answered()] == ['/r1']


def faulty_policy(updates):
    raise TypeError('a horizon policy that fails')


def test_fault_of_one_robot_is_reported_to_it_only(serving):
    engines, ask, answered, _ = serving
    ask('/r9')
    until(lambda: len(engines.batches) == 1)
    ask('/r1')
    ask('/r2', horizon=faulty_policy)
    engines.batches[0][1].set_result([ValueError('its picture')])
    until(lambda: len(engines.batches) == 2)
    engines.batches[1][1].set_result([chunk('/r1'), chunk('/r2')])
    until(lambda: len(answered()) == 3)
    by_robot = {told[0]: told[3] for told in answered()}
    assert by_robot['/r9'].verdict is Verdict.REFUSED and 'its picture' in by_robot['/r9'].message
    assert 'horizon policy' in by_robot['/r2'].message
    assert by_robot['/r1'].verdict is Verdict.ANSWERED


def test_robot_that_moved_on_gets_only_the_newer_round(serving):
    engines, ask, answered, _ = serving
    ask('/r1', 0)
    until(lambda: len(engines.batches) == 1)
    ask('/r1', 1)
    engines.batches[0][1].set_result([chunk('/r1')])
    until(lambda: len(engines.batches) == 2)
    engines.batches[1][1].set_result([chunk('/r1')])
    until(answered)
    assert [told[2] for told in answered()] == [1]


def test_request_that_crashes_the_engine_is_refused(serving):
    engines, ask, answered, dispatcher = serving
    ask('/r1')
    until(lambda: len(engines.batches) == 1)
    for robot in ('/r2', '/r9'):
        ask(robot)
    engines.batches[0][1].set_result([chunk('/r1')])
    served = 1
    while len(answered()) < 3:
        until(lambda n=served: len(engines.batches) > n or len(answered()) == 3)
        for robots, work in engines.batches[served:]:
            if '/r9' in robots:
                work.set_exception(RuntimeError('illegal instruction'))
            else:
                work.set_result([chunk(robot) for robot in robots])
            served += 1
    assert sum('/r9' in robots for robots, _ in engines.batches) == 3
    by_robot = {told[0]: told[3] for told in answered()}
    refused = by_robot.pop('/r9')
    assert refused.verdict is Verdict.REFUSED
    assert 'given up after 3 lost batches' in refused.message
    assert 'illegal instruction' in refused.message
    assert {told.verdict for told in by_robot.values()} == {Verdict.ANSWERED}
    until(lambda: dispatcher.engines['here'].alive)
    ask('/r9')  # repeated: the same answer, and no engine is used
    until(lambda: len(answered()) == 4)
    assert answered()[-1][3].message == refused.message and len(engines.batches) == served
