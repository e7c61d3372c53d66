"""examples/common/trial.py: the arm follows the previous chunk until the next one arrives."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest


class Robot:
    """Records its commands; its task never ends."""

    rate, seconds, done, stages = 20, 10.0, False, {'touched': 1}

    def __init__(self, ticks):
        self.ticks, self.steps, self.told = ticks, 0, []

    def reset(self, seed):
        self.steps = 0
        return np.full(8, -1.0)

    def request(self):
        return {}

    def step(self, action):
        self.told.append(float(action[0]))
        self.steps += 1


class Policy:
    """Returns chunk n with actions n + 0.00, n + 0.01, …, which identify their chunk."""

    def __init__(self, actions):
        self.asked, self._actions = 0, actions

    def infer(self, request):
        self.asked += 1
        rows = self.asked + 0.01 * np.arange(self._actions)
        return {'actions': np.repeat(rows[:, None], 8, axis=1)}


@pytest.fixture
def told(evaluation):
    """Return a function that runs one second and returns the commands and the counters.

    inference, latency: duration of a chunk's computation and additional delay (s).
    """

    def run(inference, latency, actions=16, every=4, ticks=1):
        robot, counted = Robot(ticks), evaluation.Counted()
        way = evaluation.Virtual(Policy(actions), latency, counted.took, inference)
        steps = evaluation.episode(robot, way, 0, counted, every)
        for _ in itertools.islice(steps, 20):
            pass
        return np.round(robot.told, 3).tolist(), counted

    return run


def test_until_the_first_chunk_is_there_the_arm_holds(told):
    assert told(0.0999, 0.0)[0][:4] == [-1.0, -1.0, 1.02, 1.03]


def test_a_chunk_takes_over_at_the_action_that_is_due(told):
    """A chunk is requested every 4 steps and arrives two steps later."""
    assert told(0.0999, 0.0)[0][2:10] == [1.02, 1.03, 1.04, 1.05, 2.02, 2.03, 2.04, 2.05]


def test_added_latency_moves_it_on(told):
    """A chunk arrives four steps after its request; the next one is requested at once."""
    assert told(0.0, 0.2)[0][4:12] == [1.04, 1.05, 1.06, 1.07, 2.04, 2.05, 2.06, 2.07]


def test_a_chunk_that_ran_out_is_held_and_counted(told):
    done, counted = told(0.0, 0.2, actions=5)
    assert done[4:9] == [1.04, 1.04, 1.04, 1.04, 2.04]
    assert counted.starved == 12  # three of the four steps of each of four chunks


def test_to_an_action_that_takes_several_steps_the_set_point_goes_straight(told):
    """An action takes four steps; a chunk that is one step late continues from the set-point."""
    done = told(0.0, 0.0, ticks=4)[0]
    assert done[:6] == [-1.0, -0.333, 0.333, 1.0, 1.002, 1.335]


@pytest.mark.parametrize('starts', ['0', '-3'])
def test_without_a_start_nothing_is_measured(evaluation, starts, monkeypatch, capsys):
    monkeypatch.setattr('sys.argv', ['eval', '--starts', starts])
    with pytest.raises(SystemExit):
        evaluation.run(None, 'a trial', 'lift', 'lifted', every=4)
    assert f'--starts {starts}: at least one' in capsys.readouterr().err


def test_a_video_that_cannot_be_written_is_said(evaluation, monkeypatch, tmp_path, capsys):
    closed = SimpleNamespace(isOpened=lambda: False)
    monkeypatch.setattr(evaluation.cv2, 'VideoWriter', lambda *_: closed)
    monkeypatch.setattr(evaluation.cv2, 'VideoWriter_fourcc', lambda *_: 0)
    evaluation.Video(tmp_path / 'lift.mp4', 20, 2)
    assert f'{tmp_path / "lift.mp4"}: OpenCV cannot write it' in capsys.readouterr().err


def test_an_interval_lies_around_its_share(evaluation):
    for done, of in ((0, 1), (1, 1), (3, 7), (90, 100), (399, 400)):
        low, high = evaluation.interval(done, of)
        assert 0 <= low <= done / of <= high <= 1
        narrower = evaluation.interval(10 * done, 10 * of)
        assert narrower[1] - narrower[0] < high - low
    assert evaluation.interval(90, 100) == pytest.approx((0.8256, 0.9448), abs=1e-4)
