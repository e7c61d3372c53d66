"""An action client sends the newest goal without waiting, and reports how goals end."""

import threading
import time

import pytest
import rclpy
from goal_server import Pair
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embodied_kv.action import ExecuteInstruction
from embodied_kv.nodes.control.action_outputs import (
    ABORTED,
    ANSWER,
    CANCELLED,
    FAULTS,
    REFUSED,
    REPLACED,
    SUCCEEDED,
    UNREACHABLE,
    GoalClient,
)


class Goals(Pair):
    """A server and a GoalClient of an action of this package; a goal is identified by its text."""

    def __init__(self, serve=True):
        super().__init__(ExecuteInstruction, serve=serve)
        self.now = 0.0
        self.client = GoalClient(
            self.node, ExecuteInstruction, self.name, self.report, clock=lambda: self.now
        )
        if serve:
            self.until(lambda: not self.client.problem())

    def send(self, *words):
        for word in words:
            self.client.send(ExecuteInstruction.Goal(instruction=word))

    @property
    def words(self):
        return [goal.instruction for goal in self.goals]


@pytest.fixture(scope='module', autouse=True)
def ros():
    started = not rclpy.ok()
    if started:
        rclpy.init()
    yield
    if started:
        rclpy.shutdown()


@pytest.fixture
def goals():
    made = Goals()
    yield made
    made.client.close()
    made.close()


def test_goal_that_ends_well_is_no_fault(goals):
    goals.send('a')
    goals.until(lambda: goals.active)
    goals.end('succeed')
    goals.until(lambda: goals.outcomes)
    (outcome,) = goals.outcomes
    assert (outcome.state, outcome.is_fault) == (SUCCEEDED, False)
    assert outcome.action == '/do'


def test_newest_goal_replaces_the_one_before_without_a_fault(goals):
    goals.send('a')
    goals.until(lambda: goals.active)
    goals.send('b')
    goals.until(lambda: goals.states == [REPLACED])
    assert goals.words == ['a', 'b'] and goals.active
    assert not goals.outcomes[0].is_fault


def test_goals_that_are_sent_at_once_arrive_in_order_and_the_last_one_runs(goals):
    words = [str(i) for i in range(8)]  # a ROS service queues 10 requests
    goals.send(*words)
    goals.until(lambda: len(goals.states) == 7)
    assert goals.words == words and set(goals.states) == {REPLACED}
    goals.end('succeed')
    goals.until(lambda: goals.states[-1] == SUCCEEDED)


def test_refused_goal_is_a_fault(goals):
    goals.accepts = False
    goals.send('a')
    goals.until(lambda: goals.outcomes)
    assert goals.states == [REFUSED] and goals.outcomes[0].is_fault
    assert str(goals.outcomes[0]).startswith('goal of /do was refused (the server refused it')


def test_abort_of_the_newest_goal_is_a_fault(goals):
    goals.send('a')
    goals.until(lambda: goals.active)
    goals.end('abort')
    goals.until(lambda: goals.outcomes)
    assert goals.states == [ABORTED] and goals.outcomes[0].is_fault


def test_goal_that_another_client_replaces_is_a_fault(goals):
    other = GoalClient(goals.node, ExecuteInstruction, goals.name, lambda outcome: None)
    goals.send('a')
    goals.until(lambda: goals.active and not other.problem())
    other.send(ExecuteInstruction.Goal(instruction='theirs'))
    goals.until(lambda: goals.outcomes)
    assert goals.states == [ABORTED]
    other.close()


def test_cancelled_goal_ends_without_a_fault(goals):
    goals.send('a')
    goals.until(lambda: goals.active)
    goals.client.cancel()
    goals.until(lambda: goals.outcomes)
    assert goals.states == [CANCELLED] and goals.active is None


def test_goal_is_cancelled_although_the_server_has_not_answered_yet(goals):
    goals.send('a')
    goals.client.cancel()
    goals.until(lambda: goals.outcomes)
    assert goals.words == ['a'] and goals.states == [CANCELLED]


def test_goal_after_a_cancellation_runs(goals):
    goals.send('a')
    goals.client.cancel()
    goals.send('b')
    goals.until(lambda: len(goals.outcomes) == 1 and goals.words == ['a', 'b'])
    goals.end('succeed')
    goals.until(lambda: len(goals.outcomes) == 2)
    assert goals.states[-1] == SUCCEEDED and not set(goals.states) & set(FAULTS)


def test_goal_without_a_server_is_a_fault_at_once():
    goals = Goals(serve=False)
    try:
        goals.send('a')
        assert goals.states == [UNREACHABLE]
        assert goals.client.problem() == 'no action server is at /do; start its controller'
    finally:
        goals.client.close()
        goals.close()


def test_server_that_does_not_answer_is_a_problem(goals):
    goals.send('a')  # the server is not spun
    assert goals.client.problem() == ''
    goals.now = ANSWER + 0.5
    assert goals.client.problem() == 'the action server at /do did not answer a goal for 1.5 s'
    goals.until(lambda: goals.active)
    goals.until(lambda: not goals.client.problem())


def test_sender_never_waits_for_the_server(goals):
    """The server is not spun. A wait for its answer would not end."""
    sender = threading.Thread(
        target=lambda: (goals.send(*map(str, range(5))), goals.client.cancel()), daemon=True
    )
    sender.start()
    sender.join(20)
    assert not sender.is_alive()
    goals.until(lambda: len(goals.outcomes) == 5)
    assert not set(goals.states) & set(FAULTS)


def test_no_answer_is_lost_if_another_thread_sends(goals, monkeypatch):
    """rclpy drops an answer that its executor takes before the sender has noted the request."""
    send = type(goals.client._client._client_handle).send_goal_request

    class Slow:
        """A handle of rclpy whose caller is interrupted just after the request has left."""

        def __init__(self, handle):
            self._handle = handle

        def send_goal_request(self, request):
            number = send(self._handle, request)
            time.sleep(0.02)
            return number

        def __getattr__(self, name):
            return getattr(self._handle, name)

    monkeypatch.setattr(
        goals.client._client, '_client_handle', Slow(goals.client._client._client_handle)
    )
    words = list(map(str, range(10)))
    sender = threading.Thread(target=goals.send, args=words, daemon=True)
    sender.start()
    goals.until(lambda: len(goals.outcomes) == len(words) - 1)
    sender.join()
    assert goals.words == words and set(goals.states) == {REPLACED}
    goals.until(lambda: not goals.client._asked)


def test_report_that_raises_does_not_end_the_executor(goals):
    def broken(outcome):
        raise RuntimeError(outcome.state)

    goals.client._report = broken
    goals.accepts = False
    goals.send('a')
    goals.until(lambda: not goals.client._asked)
    goals.accepts, goals.client._report = True, goals.report
    goals.send('b')
    goals.until(lambda: goals.active)
    goals.end('succeed')
    goals.until(lambda: goals.states == [SUCCEEDED])


def test_closed_client_sends_and_reports_nothing(goals):
    goals.send('a')
    goals.until(lambda: goals.active)
    goals.client.close()
    goals.end('abort')
    goals.spin(0.1)
    assert not goals.outcomes
    goals.client.close = lambda: None  # the fixture closes it again


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.sampled_from(['send', 'cancel', 'abort', 'succeed', 'refuse', 'spin'])))
def test_every_goal_ends_once_after_random_events(goals, events):
    """Each goal has one outcome; only the events 'abort' and 'refuse' are faults."""
    goals.outcomes.clear()
    sent, faults, refused = 0, 0, 0
    for event in events:
        if event in ('send', 'refuse'):
            goals.until(lambda: not goals.client._asked)
            goals.accepts = event == 'send'
            goals.send('x')
            sent, refused = sent + 1, refused + (event == 'refuse')
            goals.until(lambda: not goals.client._asked)
        elif event == 'cancel':
            goals.client.cancel()
            goals.until(lambda: not goals.active)
        elif event == 'spin':
            goals.spin(0.01)
        elif goals.active:
            goals.end(event)
            # The server may still run an older goal that a refused one was to replace.
            faults += event == 'abort'
    goals.client.cancel()
    goals.until(lambda: len(goals.outcomes) == sent)
    goals.spin(0.02)
    assert len(goals.outcomes) == sent
    assert goals.states.count(REFUSED) == refused
    assert goals.states.count(ABORTED) <= faults
