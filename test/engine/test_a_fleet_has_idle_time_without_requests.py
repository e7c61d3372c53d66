"""The engine of a fleet has idle time for language while no request waits or is expected."""

import math
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest

from embodied_kv.control.execution_horizon import Static
from embodied_kv.fleet.dispatcher import Dispatcher
from embodied_kv.fleet.engines import EngineState, Link
from embodied_kv.fleet.profile import Profile
from embodied_kv.fleet.protocol import LastExecution, Request
from embodied_kv.fleet.request_timing import LATE
from embodied_kv.fleet.schedulers import Fifo
from embodied_kv.serving.fleet_server import FleetServer
from embodied_kv.types import ActionChunk

DT, H = 0.1, 5
PROFILE = Profile('p', (1,), (0.2,), 100)


def chunk(frame):
    updates = np.ones((4, 10), np.float32)
    return ActionChunk(np.zeros((10, 7), np.float32), DT, 0, 0.0, 0, 4, 1.0, 1.0, updates=updates)


class Fleet:
    """A server with the test's clock and engines. pending: future and frames, by engine name."""

    def __init__(self, *engines, delay=0.0):
        self.now, self.pending, self.idle, self.gone = 0.0, {}, [], []
        self.told = []
        engines = engines or (EngineState('here', PROFILE),)
        self.server = FleetServer(
            Dispatcher(Fifo(), engines, max_queue_delay=delay),
            {engine.name: self._serve(engine.name) for engine in engines},
            lambda *told: self.told.append(told),
            clock=lambda: self.now,
            on_idle=lambda: self.idle.append(self.now),
            on_vanished=self.gone.append,
        )

    def _serve(self, name):
        def serve(frames, deadline):
            self.pending[name] = Future(), frames
            return self.pending[name][0]

        return serve

    def ask(self, robot='/r', round=0, remaining=None, engine='here'):
        told = None if remaining is None else LastExecution(round - 1, 0.0, 0.1, remaining)
        frame = SimpleNamespace(robot=robot, sequence=round)
        request = Request(robot, 't', round, 0.0, Static(H), 10, told)
        self.server.submit(request, frame)

    def answer(self, engine='here'):
        future, frames = self.pending.pop(engine)
        future.set_result([chunk(frame) for frame in frames])

    def slack(self, engine='here'):
        return self.server.idle_time(engine, self.now)


@pytest.fixture
def fleet():
    return Fleet()


def test_there_is_none_from_a_request_to_its_answer(fleet):
    assert fleet.slack() == math.inf
    fleet.ask()
    assert fleet.slack() == 0.0  # before the server thread has handled it
    fleet.server.step()
    assert fleet.slack() == 0.0 and fleet.pending
    fleet.answer()
    assert fleet.slack() == 0.0  # the batch is over, but not handled by the server yet
    fleet.server.step()
    assert fleet.slack() > 0.0


def test_it_ends_when_the_next_request_is_expected(fleet):
    for round in range(2):
        fleet.ask(round=round, remaining=1 if round else None)
        fleet.server.step()
        fleet.now += 0.05  # less than the remaining action: the robot keeps moving
        fleet.answer()
        fleet.server.step()
        if not round:
            assert fleet.slack() == math.inf  # a first round gives no forecast
    expected = 0.05 + (H - 1) * DT
    assert fleet.slack() == pytest.approx(expected - fleet.now)
    fleet.now = expected + LATE / 2
    assert fleet.slack() == 0.0
    fleet.now = expected + 2 * LATE  # no request came: the forecast expires
    assert fleet.slack() == math.inf


def test_a_task_that_is_over_and_a_robot_that_is_gone_are_not_expected(fleet):
    for end in (lambda: fleet.server.finish('/r', 't'), lambda: fleet.server.vanish('/r')):
        fleet.ask(round=1, remaining=1)
        fleet.server.step()
        fleet.answer()
        fleet.server.step()
        assert fleet.slack() < 1.0
        end()
        fleet.server.step()
        assert fleet.slack() == math.inf
        fleet.server.vanish('/r')
        fleet.server.step()


def test_a_request_that_waits_behind_a_batch_leaves_none_when_that_is_over(fleet):
    fleet.ask('/a')
    fleet.server.step()
    fleet.ask('/b')
    fleet.server.step()
    fleet.answer()
    fleet.server.step()  # the batch of /b begins
    assert fleet.slack() == 0.0 and fleet.pending


def test_what_another_engine_computes_is_none_of_its_business():
    near = Link(0.0, 1e9, 1e9)
    edge, cloud = EngineState('here', PROFILE), EngineState('cloud', PROFILE, near)
    fleet = Fleet(edge, cloud)
    edge.alive = False  # so the cloud takes it
    fleet.ask()
    fleet.server.step()
    assert fleet.slack('here') == math.inf and fleet.slack('cloud') == 0.0


def test_who_computes_is_told_when_nobody_waits_and_of_robots_that_are_gone(fleet):
    fleet.ask()
    fleet.server.step()
    fleet.ask('/b')
    fleet.idle.clear()
    fleet.server.step()
    assert fleet.idle == []  # /b waits
    fleet.answer()
    fleet.server.step()
    fleet.answer()
    fleet.server.step()
    assert fleet.idle
    for robot in ('/r', '/b'):
        fleet.server.vanish(robot)
        fleet.server.step()
    assert fleet.gone == ['/r', '/b']


def test_there_is_some_while_a_request_is_held_for_others():
    fleet = Fleet(EngineState('here', Profile('p', (1, 2), (0.2, 0.21), 100)), delay=0.05)
    for robot in ('/r', '/s'):
        fleet.ask(robot)
        fleet.server.step()
    assert fleet.slack() == 0.0 and len(fleet.pending['here'][1]) == 1, 'the first was alone'
    fleet.answer()
    fleet.server.step()
    before = len(fleet.idle)
    assert fleet.slack() == pytest.approx(0.05) and before and not fleet.pending
    fleet.now += 0.05
    fleet.server.step()
    assert fleet.slack() == 0.0 and fleet.pending


def test_a_round_that_is_answered_before_its_batch_ends_counts_although_the_next_is_requested(
    fleet,
):
    fleet.ask()
    fleet.server.step()
    (frame,) = fleet.pending['here'][1]
    fleet.now = 0.05
    fleet.server.made(frame, chunk(frame))
    fleet.ask(round=1, remaining=2)  # before the batch ends
    for _ in range(2):
        fleet.server.step()
    task = fleet.server.dispatcher.rounds.robots['/r'].task
    assert (task.request.round, task.wait.generation) == (1, 0.05)
    fleet.answer()
    fleet.server.step()
    verdicts = [(round, receipt.verdict.value) for _, _, round, receipt in fleet.told]
    assert verdicts == [(0, 'queued'), (0, 'answered'), (1, 'queued')]
