"""A fleet in virtual time generates text in idle time and hardly delays its chunks."""

from dataclasses import replace

import numpy as np
import pytest
from test_fleet_lockstep_is_exact import DT, HABITS, H, Played

from benchmarks.fleet.serving.lockstep import Order, run
from embodied_kv.config import TINY
from embodied_kv.engine_config import EngineConfig
from embodied_kv.fleet.profile import Profile
from embodied_kv.model.policy import Policy
from embodied_kv.serving.engine_runner import EngineRunner

CHUNK = 0.05  # s
WORDS = {'begin': {8: 0.004, 48: 0.004}, 'decode': {1: 0.002, 16: 0.006}}
TASKS = [[3, 2], [4, 1], [2, 3]]
SPEAKING = replace(HABITS, prompts=('Subtask:', 'Narrate:'), max_tokens=6)


@pytest.fixture(scope='module')
def engine():
    config = EngineConfig(max_batch_robots=2, rows=32, deadline_margin_ms=0.0)
    with EngineRunner(Policy.random(TINY), config) as local:
        yield local


@pytest.fixture
def fleet(engine):
    """Return a function that runs a fleet whose text has these costs; None: without text."""

    def run_fleet(words, tasks=TASKS, streams=0, habits=SPEAKING):
        profile = Profile('e', (1, 2), (CHUNK, 0.06), 9)
        starts = [0.113 * robot for robot in range(len(tasks))]
        habits = HABITS if words is None else habits
        order = Order(profile, habits, starts, tasks, speech=words or {}, streams=streams)
        found = run(engine, order, Played())
        engine.engine.kv.check_integrity()
        return found

    return run_fleet


def test_two_runs_say_the_same_and_are_equal_to_the_digit(fleet):
    one, other = fleet(WORDS), fleet(WORDS)
    assert one['said'] == other['said'] and any(one['said'])
    for key in ('tasks', 'latencies', 'spoken', 'charged', 'span'):
        assert one[key] == other[key]


def test_whom_it_expects_it_keeps_waiting_for_nothing(fleet):
    """With one robot only the request of round 2 is unexpected, of which nothing is known yet."""
    mute, speaking = fleet(None, [[8]]), fleet(WORDS, [[8]])
    assert not mute['said'] and mute['spoken'] == 0 < speaking['spoken']
    late = np.array(speaking['latencies'][:8]) - np.array(mute['latencies'][:8])
    assert np.allclose(np.delete(late, 1), 0.0) and 0 <= late[1] <= 0.006 + 1e-9
    assert speaking['spoken'] + speaking['charged'] <= speaking['span'] + 1e-9


def test_a_request_waits_for_one_unit_of_words_at_most(fleet):
    mute, speaking = fleet(None), fleet(WORDS)
    assert max(speaking['latencies']) <= max(mute['latencies']) + 2 * 0.006 + 0.06


def test_words_that_fit_nowhere_are_not_said(fleet):
    never = {kind: dict.fromkeys(sizes, H * DT) for kind, sizes in WORDS.items()}
    spoken = fleet(never, [[6]])['spoken']
    # No request is expected before the second round, nor after the end of the task.
    assert spoken <= 2 * H * DT + 1e-9


def test_there_are_no_more_streams_than_told(fleet):
    few, many = fleet(WORDS, streams=3), fleet(WORDS, streams=12)
    assert len(few['said']) < len(many['said'])


def test_prompts_are_continued_as_often_as_told(fleet):
    often, seldom = (
        fleet(WORDS, habits=replace(SPEAKING, prompt_interval_frames=n)) for n in (1, 3)
    )
    assert 0 < len(seldom['said']) < len(often['said'])
