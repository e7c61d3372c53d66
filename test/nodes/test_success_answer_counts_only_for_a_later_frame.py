"""The answer yes ends a goal only if it is about a frame from after the start of the goal."""

from types import SimpleNamespace

import pytest

from embodied_kv.action import ExecuteInstruction
from embodied_kv.control.command import FRESH
from embodied_kv.errors import ErrorCode
from embodied_kv.msg import TextDelta
from embodied_kv.nodes.common.conversions import stamp
from embodied_kv.nodes.control.instruction_server import Goal, InstructionServer

BEFORE, SINCE = 8_000_000_000, 9_000_000_000  # ns


@pytest.fixture
def server():
    server = object.__new__(InstructionServer)
    server.now = 100.0  # s, world's clock
    server._now = lambda: server.now
    request = ExecuteInstruction.Goal(instruction='go')
    server._goal = Goal(SimpleNamespace(request=request), 'Is it done?', server.now, 0)
    server.now += 2.0
    server._asked, server._words, server._stamps, server.ends = 7, {}, {}, []
    server._language = SimpleNamespace(prompts=())
    server._end = lambda code, why: server.ends.append(code)
    return server


def execute(server, moment, age=0.1):
    server.note_command(SimpleNamespace(source=FRESH, age=age, stamp=moment, deadline_met=True))


def say(server, moment):
    message = TextDelta(stream=7, text='Yes.', finished=True)
    message.header.stamp = stamp(moment)
    server._on_text(message)
    return server.ends


def test_of_a_frame_from_before_it_ends_nothing(server):
    execute(server, SINCE)
    assert not say(server, BEFORE)


@pytest.mark.parametrize('moment', [SINCE, SINCE + 1])
def test_of_the_first_frame_that_was_acted_upon_or_a_newer_one_it_ends_the_goal(server, moment):
    execute(server, BEFORE, age=3600.0)
    execute(server, SINCE)
    execute(server, SINCE + 2)
    assert say(server, moment) == [ErrorCode.NONE]


def test_while_nothing_since_was_acted_upon_it_ends_nothing(server):
    execute(server, BEFORE, age=3600.0)
    assert not say(server, SINCE)


def test_where_the_clock_was_set_back_what_is_seen_then_counts(server):
    execute(server, SINCE)
    execute(server, BEFORE)  # the clock was set back
    assert say(server, BEFORE + 1) == [ErrorCode.NONE]
