"""After a kill another process resumes exactly the interrupted work."""

from dataclasses import replace

import pytest
import torch
from whole_cases import COSTS, POLICY, SETTINGS, Blind, run

from benchmarks.fleet.serving.schedule import Schedule
from benchmarks.whole.body import Body
from benchmarks.whole.process import Process
from benchmarks.whole.voices import Voices
from benchmarks.whole.ways import WAYS
from embodied_kv.fleet.protocol import Request
from embodied_kv.planning.mission import Outcome
from embodied_kv.types import Observation

ONE = replace(SETTINGS, robots=1, mission_seconds=2.0)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def test_a_restored_step_is_in_force_once_the_robot_has_looked(tmp_path):
    acting = []

    class Looking(Blind):
        def look(self, instruction='', mission=''):
            super().look(instruction, mission)
            if (restart := self._body.record.restart) is not None:
                acting.append((self._state().acting, restart.acting))

    run('all', tmp_path, settings=ONE, robot=Looking)
    assert acting[0][0] and acting[0][1] is None


def test_a_cold_restart_asks_what_was_cut_off_for_as_many_tokens(tmp_path, monkeypatch):
    killed, told, asked = Body.killed, [], []
    ask = Voices.ask

    def heard(self, words):
        told.extend(words)
        killed(self, words)

    def said(self, frame, text, on_answer=str, most=None):
        if told and on_answer is str:
            asked.append((text, most))
        ask(self, frame, text, on_answer, most)

    monkeypatch.setattr(Body, 'killed', heard)
    monkeypatch.setattr(Voices, 'ask', said)
    while_it_looks = replace(ONE, kill=(0.02, 0.0201))
    run('no capsules', tmp_path, settings=while_it_looks)
    assert told and asked == told and {most for _, most in told} <= {3, 4}


def test_a_done_step_is_remembered_with_the_place_that_its_thing_had(tmp_path):
    found = []

    class Sure(Blind):
        def act(self, instruction):
            super().act(instruction)
            return Outcome(True)

        def confirms(self, instruction):
            return True

        def remember(self, instruction, done):
            super().remember(instruction, done)
            found.append(any(f'{instruction}, from the ' in text for text in self.memory()))

    run('all', tmp_path, settings=replace(ONE, kill=(9.0, 9.1)), robot=Sure)
    assert found and found[0]


class Robot:
    """A robot that requests chunks from a process."""

    def __init__(self):
        self.schedule, self.heard = Schedule(), []
        short = replace(SETTINGS, robots=1, retry_interval=1e-3)
        given = POLICY, short, WAYS['all'], COSTS, self.schedule
        self.process = Process(*given, ['/a'])

    def ask(self, round):
        size = POLICY.config.vision.image_size
        seen = Observation(
            images=tuple(torch.zeros(size, size, 3, dtype=torch.uint8).numpy() for _ in range(2)),
            state=torch.zeros(7).numpy(),
            instruction='reach the red cube',
            stamp=0,
            deadline=float('-inf'),
            sequence=round + 1,
            robot='/a',
        )
        request = Request('/a', 'a task', round, self.schedule.now, lambda chunk: 1, 1)
        self.process.ask(request, seen, self.heard.append)

    def run(self, until):
        self.schedule.at(until, lambda: None)
        self.schedule.run(lambda: self.schedule.now < until, self.process.settle)


def test_a_round_has_one_latency_to_the_chunk_that_is_heard():
    robot = Robot()
    robot.schedule.at(0.0, lambda: robot.ask(0))
    robot.run(until=1.0)  # the chunk arrives while the robot observes again
    assert robot.heard == [None] and robot.process.latencies == []
    robot.schedule.at(1.0, lambda: robot.ask(0))
    robot.run(until=2.0)
    assert len(robot.heard) == 2 and robot.heard[1].values.shape
    assert robot.process.latencies == pytest.approx([1.0]) and len(robot.process.horizons) == 1
    robot.schedule.at(2.0, lambda: robot.ask(1))
    robot.run(until=2.0005)
    assert len(robot.process.latencies) == 1


def test_the_first_error_is_raised_and_those_of_who_ends_by_it_are_said(tmp_path, caplog):
    class Clumsy(Blind):
        def plan(self, state):
            if self._body.name == '/robot_1':
                raise LookupError('the first')
            try:
                return super().plan(state)
            except BaseException as error:
                raise KeyError('a lesser one') from error

        def look(self, instruction='', mission=''):
            try:
                super().look(instruction, mission)
            except BaseException as error:
                raise KeyError('a lesser one') from error

        def act(self, instruction):
            try:
                return super().act(instruction)
            except BaseException as error:
                raise KeyError('a lesser one') from error

    with pytest.raises(LookupError, match='the first'):
        run('all', tmp_path, robot=Clumsy)
    assert 'a lesser one' in caplog.text
