"""A request is held for a fuller batch, at most for the maximum delay."""

import pytest
from fleet_cases import answers, request

from embodied_kv.fleet.dispatcher import Dispatcher
from embodied_kv.fleet.engines import EngineState
from embodied_kv.fleet.profile import Profile
from embodied_kv.fleet.rounds import Robot
from embodied_kv.fleet.schedulers import Fifo

PAIRS = Profile('pairs', (1, 2), (1.0, 1.2), 1400)
DELAY = 0.05  # s


def fleet(*robots, delay=DELAY):
    found = Dispatcher(Fifo(), [EngineState('pairs', PAIRS)], max_queue_delay=delay)
    for robot in robots:
        found.rounds.robots[robot] = Robot()
    return found


def sent(found, now):
    """Return the robots that are dispatched now, batch by batch."""
    return [[waiting.robot for waiting in batch.batch] for batch in found.decide(now)]


def test_request_is_sent_after_the_maximum_delay():
    found = fleet('a', 'b', 'c')
    found.submit(request('a'), 1.0)
    assert sent(found, 1.0) == [] and found.held_until == found.wake(1.0) == 1.0 + DELAY
    assert sent(found, 1.0 + DELAY) == [['a']]


def test_full_batch_is_sent_at_once():
    found = fleet('a', 'b', 'c')
    found.submit(request('a'), 1.0)
    assert sent(found, 1.0) == []
    found.submit(request('b'), 1.02)
    assert sent(found, 1.02) == [['a', 'b']] and found.held_until <= 1.02


def test_oldest_request_determines_the_delay():
    found = Dispatcher(
        Fifo(),
        [EngineState('threes', Profile('t', (1, 4), (1.0, 1.2), 1400))],
        max_queue_delay=DELAY,
    )
    for robot in 'abcd':
        found.rounds.robots[robot] = Robot()
    found.submit(request('a'), 1.0)
    found.submit(request('b'), 1.04)
    assert sent(found, 1.04) == [] and found.held_until == 1.0 + DELAY
    assert sent(found, 1.0 + DELAY) == [['a', 'b']]


@pytest.mark.parametrize(('robots', 'delay'), [(['a'], DELAY), (['a', 'b', 'c'], 0.0)])
def test_single_robot_or_zero_delay_is_sent_at_once(robots, delay):
    found = fleet(*robots, delay=delay)
    found.submit(request('a'), 1.0)
    assert sent(found, 1.0) == [['a']]


def test_lost_request_is_not_held_again():
    found = fleet('a', 'b', 'c')
    found.submit(request('a'), 1.0)
    (batch,) = found.decide(1.0 + DELAY)
    found.lost('pairs')
    found.restored('pairs')
    assert sent(found, 2.0) == [['a']]


def test_answer_belongs_to_its_round():
    found = fleet('a', 'b', 'c')
    found.submit(request('a'), 1.0)
    (batch,) = found.decide(1.0 + DELAY)
    (answer,) = found.done('pairs', batch.number, answers(batch), 2.0)
    assert answer.robot == 'a' and not found.queue
