"""A robot that vanishes or shares names does not affect other robots."""

import time

from fleet_cases import answers, dispatcher, request
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_kv.fleet.engines import EngineState
from embodied_kv.fleet.profile import Profile
from embodied_kv.fleet.protocol import Verdict
from embodied_kv.fleet.rounds import MOST_ROBOTS
from embodied_kv.fleet.schedulers import Kairos

WIDE = Profile('wide', (1, 16), (0.1, 0.2), 1400)


def test_a_robot_that_vanishes_in_the_middle_of_a_round():
    server = dispatcher()
    for robot in 'ab':
        server.submit(request(robot), 0.0)
    (dispatch,) = server.decide(0.0)  # the request of a
    server.vanish('a')
    assert server.done('one', dispatch.number, answers(dispatch), 1.0) == []
    (dispatch,) = server.decide(1.0)
    assert [r.robot for r in dispatch.batch] == ['b']
    assert list(server.rounds.robots) == ['b']


def test_a_robot_that_vanishes_while_it_waits_is_not_served():
    server = dispatcher()
    for robot in 'ab':
        server.submit(request(robot), 0.0)
    server.vanish('a')
    assert [r.robot for r in server.decide(0.0)[0].batch] == ['b']


def test_equal_task_names_are_different_tasks():
    server = dispatcher()
    for robot in 'ab':
        server.submit(request(robot, task='same'), 0.0)
    (dispatch,) = server.decide(0.0)
    (answer,) = server.done('one', dispatch.number, answers(dispatch, 'of a'), 1.0)
    assert answer.robot == 'a'
    assert server.submit(request('b', task='same'), 1.0).verdict is Verdict.DUPLICATE
    server.finish('a', 'same')
    assert list(server.queue) == ['b']


def test_a_thousand_robots_at_once():
    names = [f'r{i}' for i in range(1000)]
    server = dispatcher(EngineState('wide', WIDE), scheduler=Kairos())
    began = time.perf_counter()
    assert {server.submit(request(name), 0.0).verdict for name in names} == {Verdict.QUEUED}
    answered, now = [], 0.0
    while dispatches := server.decide(now):
        (dispatch,) = dispatches
        answered += server.done('wide', dispatch.number, answers(dispatch), now := now + 0.2)
    assert sorted(a.robot for a in answered) == sorted(names)
    assert time.perf_counter() - began < 5


def test_number_of_robots_is_bounded():
    server = dispatcher()
    for i in range(MOST_ROBOTS):
        server.submit(request(str(i)), 0.0)
    receipt = server.submit(request('one more'), 0.0)
    assert receipt.verdict is Verdict.REFUSED and f'at most {MOST_ROBOTS}' in receipt.message
    assert server.submit(request('0', 1), 1.0).verdict is Verdict.QUEUED


ACTS = st.tuples(
    st.sampled_from(['submit', 'old', 'new task', 'vanish', 'finish', 'serve']),
    st.sampled_from('ab'),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(ACTS, max_size=40))
def test_robot_gets_its_own_answer_once_for_any_requests_of_others(acts):
    """`quiet` requests round after round while a and b do anything; it gets each answer once."""
    server = dispatcher(EngineState('wide', WIDE))
    rounds, tasks, heard, now = dict(a=0, b=0), dict(a=0, b=0), [], 0.0
    server.submit(request('quiet', 0), now)
    for act, robot in acts:
        now += 0.5
        if act == 'vanish':
            server.vanish(robot)
        elif act == 'finish':
            server.finish(robot, f't{tasks[robot]}')
        elif act == 'serve':
            for dispatch in server.decide(now):
                for answer in server.done('wide', dispatch.number, answers(dispatch), now + 0.2):
                    if answer.robot == 'quiet':
                        heard.append(answer.round)
                        server.submit(request('quiet', answer.round + 1), now + 0.3)
        else:
            rounds[robot] += act == 'submit'
            tasks[robot] += act == 'new task'
            server.submit(request(robot, rounds[robot], task=f't{tasks[robot]}'), now)
        assert 'quiet' in server.queue
    assert heard == list(range(len(heard))) and len(heard) == sum(a == 'serve' for a, _ in acts)
