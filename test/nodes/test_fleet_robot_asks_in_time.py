"""`RequestTiming`: when a request is due, and from which moment on a chunk counts."""

import pytest

from embodied_kv.fleet.request_timing import PAUSE, RequestTiming

DT = 0.1


@pytest.fixture
def asking():
    made = RequestTiming(DT, ahead=2, repeat=0.5)
    made.begin('t')
    return made


def served(asking, now, horizon=5, observed=None):
    assert asking.due(now)
    asking.ask(now)
    return asking.take(horizon, now if observed is None else observed, now)


def test_a_request_is_repeated_until_it_is_answered(asking):
    assert asking.due(0.0)
    assert asking.ask(0.0) == 0
    assert not asking.due(0.4)
    assert asking.due(0.5)
    assert asking.ask(0.5) == 0  # the same round
    asking.take(5, 0.5, 0.6)
    assert asking.round == 0 and not asking.waiting


def test_the_next_chunk_is_asked_for_ahead_of_the_end(asking):
    began = served(asking, 1.0)
    assert began == 1.0 and asking.ends == pytest.approx(1.5)
    assert not asking.due(1.29)
    assert asking.due(1.31)
    assert asking.ask(1.31) == 1


def test_time_that_the_robot_stood_still_does_not_count(asking):
    asking.ask(0.0)
    assert asking.take(5, observed=0.0, now=2.0) == 2.0  # it never moved: from the first action on
    assert asking.execution(2.0).start == 2.0

    asking.ask(2.3)  # two actions are left when it looks
    assert asking.take(5, observed=2.3, now=3.0) == pytest.approx(2.8)  # 0.2 s of them moved it
    done = asking.execution(3.0)
    assert done.round == 1 and done.start == pytest.approx(3.0)
    assert done.end == pytest.approx(3.3) and done.remaining == 3


def test_a_chunk_that_comes_while_it_moves_counts_from_its_observation(asking):
    served(asking, 0.0)
    asking.ask(0.3)
    assert asking.take(5, observed=0.3, now=0.45) == pytest.approx(0.3)
    assert asking.ends == pytest.approx(0.8)
    assert asking.execution(0.45).start == pytest.approx(0.5)


def test_a_chunk_whose_actions_are_over_is_not_executed(asking):
    served(asking, 0.0)
    asking.ask(0.3)
    asking.take(1, observed=0.3, now=0.45)
    assert asking.ends == pytest.approx(0.5)
    assert asking.execution(0.45).round == 0
    assert asking.due(0.45)


def test_after_a_refusal_it_pauses(asking):
    asking.ask(0.0)
    asking.refused(0.1)
    assert not asking.due(0.1 + PAUSE - 0.01)
    assert asking.due(0.1 + PAUSE)
    assert asking.ask(0.1 + PAUSE) == 1


def test_a_new_task_begins_anew_while_the_robot_moves_on(asking):
    served(asking, 0.0)
    asking.begin('other')
    assert asking.execution(0.1) is None
    assert not asking.due(0.1) and asking.ends == pytest.approx(0.5)
    assert asking.ask(0.35) == 0
