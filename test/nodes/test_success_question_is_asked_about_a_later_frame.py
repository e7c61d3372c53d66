"""The success question is asked once a chunk is executed whose frame is newer than the goal."""

from types import SimpleNamespace

import pytest

from embodied_kv.action import ExecuteInstruction
from embodied_kv.control.command import FRESH, HOLD, PREVIOUS
from embodied_kv.nodes.control.instruction_server import Goal, InstructionServer


@pytest.fixture
def server():
    server = object.__new__(InstructionServer)
    server.asked, server.now = [], 100.0  # s, world's clock
    server._now = lambda: server.now
    request = ExecuteInstruction.Goal(instruction='go')
    server._goal = Goal(SimpleNamespace(request=request), 'Is it done?', server.now, 0)
    server.now += 2.0
    server._next_question = server._asked_until = 0.0
    server._words, server._stamps = {}, {}
    future = SimpleNamespace(add_done_callback=lambda _: None)
    server._ask = SimpleNamespace(
        service_is_ready=lambda: True,
        call_async=lambda request: server.asked.append(request.question) or future,
    )
    return server


def see(server, source, age):
    server.note_command(SimpleNamespace(source=source, age=age, stamp=0, deadline_met=True))
    server._ask_if_due(server._goal)
    return server.asked


def test_not_while_nothing_is_executed(server):
    server._ask_if_due(server._goal)
    assert not server.asked
    assert not see(server, HOLD, 0.1) and not see(server, PREVIOUS, 0.1)


def test_not_of_a_chunk_that_answers_an_observation_from_before(server):
    assert not see(server, FRESH, 3600.0)


def test_once_a_chunk_since_then_is_executed(server):
    assert see(server, FRESH, 0.1) == ['Is it done?']


def test_in_a_world_that_is_slower_than_real_time(server):
    server._goal.began -= 3600.0
    assert not see(server, FRESH, 2.5), 'an hour has passed, but in that world two seconds'
    assert see(server, FRESH, 1.5)


def test_in_a_world_that_is_faster_than_real_time(server):
    server.now += 3600.0
    assert see(server, FRESH, 60.0)


def test_in_a_world_that_began_again(server):
    server.now = 1.0
    assert not see(server, FRESH, 0.5)
    server.now += 2.0
    assert see(server, FRESH, 0.5)
