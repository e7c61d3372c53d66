"""`RequestTiming` determines when a request is due and when actions of a chunk begin to count."""

import pytest

from embodied_kv.fleet.request_timing import RequestTiming

DT = 0.1


@pytest.fixture
def timing():
    made = RequestTiming(DT, request_ahead=2, retry_interval=0.5)
    made.begin('t')
    return made


def served(timing, now, horizon=5, observed=None):
    assert timing.due(now)
    timing.ask(now)
    return timing.take(horizon, now if observed is None else observed, now)


def test_a_request_is_repeated_until_it_is_answered(timing):
    assert timing.due(0.0)
    assert timing.ask(0.0) == 0
    assert not timing.due(0.4)
    assert timing.due(0.5)
    assert timing.ask(0.5) == 0  # the same round
    timing.take(5, 0.5, 0.6)
    assert timing.round == 0 and not timing.waiting


def test_the_next_chunk_is_asked_for_ahead_of_the_end(timing):
    began = served(timing, 1.0)
    assert began == 1.0 and timing.ends == pytest.approx(1.5)
    assert not timing.due(1.29)
    assert timing.due(1.31)
    assert timing.ask(1.31) == 1


def test_time_that_the_robot_stood_still_does_not_count(timing):
    timing.ask(0.0)
    assert timing.take(5, observed=0.0, now=2.0) == 2.0  # it never moved: all actions count
    assert timing.execution(2.0).start == 2.0

    timing.ask(2.3)  # two actions are left at the observation
    assert timing.take(5, observed=2.3, now=3.0) == pytest.approx(2.8)  # it moved for 0.2 s
    done = timing.execution(3.0)
    assert done.round == 1 and done.start == pytest.approx(3.0)
    assert done.end == pytest.approx(3.3) and done.remaining == 3


def test_a_chunk_that_comes_while_it_moves_counts_from_its_observation(timing):
    served(timing, 0.0)
    timing.ask(0.3)
    assert timing.take(5, observed=0.3, now=0.45) == pytest.approx(0.3)
    assert timing.ends == pytest.approx(0.8)
    assert timing.execution(0.45).start == pytest.approx(0.5)


def test_a_chunk_whose_actions_are_over_is_not_executed(timing):
    served(timing, 0.0)
    timing.ask(0.3)
    timing.take(1, observed=0.3, now=0.45)
    assert timing.ends == pytest.approx(0.5)
    assert timing.execution(0.45).round == 0
    assert timing.due(0.45)


def test_new_task_keeps_the_current_execution(timing):
    served(timing, 0.0)
    timing.begin('other')
    assert timing.execution(0.1) is None
    assert not timing.due(0.1) and timing.ends == pytest.approx(0.5)
    assert timing.ask(0.35) == 0
