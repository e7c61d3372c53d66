"""Kairos counts the pending wait if enabled (Algorithm 1, lines 2 to 5); it is at most W_j."""

import math

import pytest
from fleet_cases import answers, dispatcher, ran, request, waiting
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.fleet.rounds import WaitTime
from embodied_kv.fleet.schedulers import Kairos

LONG, SHORT = 1.5, 0.25  # s of an execution; a generation takes 1 s


def pending(execution, remaining, asked):
    """Return the waiting request for round 1 of a robot whose round 0 was generated in 1 s."""
    fleet = dispatcher()
    fleet.submit(request(round=0), 0.0)
    (sent,) = fleet.decide(0.0)
    fleet.done('one', sent.number, answers(sent), 1.0)
    fleet.submit(
        request(round=1, execution=ran(0, 101.0, 101.0 + execution, remaining)), asked
    )  # execution times are on the robot's clock
    return fleet.queue['r']


def test_a_generation_dominated_round_keeps_waiting_since_its_answer():
    assert pending(SHORT, 0, asked=1.5).due == 1.0


def test_an_execution_dominated_round_keeps_waiting_since_its_last_action():
    assert pending(LONG, 2, asked=2.0).due == pytest.approx(2.0 + LONG * 2 / 5)
    assert pending(LONG, 2, asked=3.0).due == pytest.approx(3.0 + LONG * 2 / 5)


def test_wait_begins_after_the_earliest_possible_execution():
    assert pending(LONG, 0, asked=1.1).due == 1.0 + LONG


def test_the_first_round_of_a_task_waits_between_no_rounds():
    fleet = dispatcher()
    fleet.submit(request(round=0), 0.0)
    assert fleet.queue['r'].due == math.inf


def test_incomplete_round_does_not_count():
    wait = WaitTime()
    wait.generated(0, 0.0, 1.0)
    assert wait.due(0, 5.0) == wait.due(3, 5.0) == math.inf


@given(*[st.floats(0.01, 2.0)] * 2, *[st.floats(0.0, 2.0)] * 3)
def test_pending_wait_never_exceeds_the_final_wait(generation, execution, before, queued, network):
    """At the next dispatch it equals W_j if generation dominates, else it is at most W_j."""
    wait, answered = WaitTime(), generation
    begin, end = answered + before, answered + before + execution
    wait.generated(0, 0.0, answered)
    wait.executed(0, begin, end, received=end)
    due = wait.due(0, end)
    dispatched = end + queued
    wait.generated(1, dispatched, dispatched + generation)
    after = dispatched + generation + network
    wait.executed(1, after, after + execution, received=after)
    so_far = max(dispatched - due, 0.0)
    assert so_far <= wait.total + 1e-5
    if generation >= execution + 1e-5:
        assert so_far == pytest.approx(wait.total)


def test_pending_wait_changes_the_order_only_if_enabled():
    past = waiting('past', waited=3.0, execution=1.0)
    now = waiting('now', waited=0.0, execution=0.5)
    now.due = 5.0
    order = [request.robot for request in Kairos().order([now, past], 10.0)]
    assert order == ['past', 'now']
    order = [request.robot for request in Kairos(pending=True).order([now, past], 10.0)]
    assert order == ['now', 'past']


def test_wait_that_has_not_begun_is_zero():
    a, b = waiting('a', waited=1.0, execution=2.0), waiting('b', waited=1.0)
    b.due = 11.0
    order = [request.robot for request in Kairos(pending=True).order([b, a], 10.0)]
    assert order == ['a', 'b']
