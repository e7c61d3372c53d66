"""With an engine slower than a control period, each chunk continues the running one."""

import time

import numpy as np
import pytest
from std_msgs.msg import String

from embodied_kv.config import TINY
from embodied_kv.engine.engine import Engine
from embodied_kv.msg import ActionChunk
from embodied_kv.nodes.action import Action
from embodied_kv.nodes.common.lifecycle_node import OK
from embodied_kv.nodes.perception import Perception

SLOW = 0.12  # s that the engine takes in addition
RATE = 10.0  # control periods per second
DT, CHUNK = TINY.action_dt, TINY.chunk_size


@pytest.fixture
def guides(monkeypatch):
    """Slow the engine down; return the action prefixes that it receives."""
    told, denoise = [], Engine.denoise

    def slow(engine, leases, deadlines, noises=None, guides=()):
        chunks = denoise(engine, leases, deadlines, noises, guides)
        if leases[0].handle.robot != 'warm-up':
            time.sleep(SLOW)
            told.extend(guides)
        return chunks

    monkeypatch.setattr(Engine, 'denoise', slow)
    return told


def up(robot, **options):
    """Start in shadow mode, in which an arm need not follow."""
    options = (
        dict(shadow=True, control_frequency=RATE, engine__rtc='guided', engine__rtc_horizon=5)
        | options
    )
    return robot.up(Perception, Action, **options)


def fresh(chunks):
    return [chunk for chunk in chunks if chunk.source == ActionChunk.FRESH]


@pytest.mark.parametrize('rtc', ['guided', 'trained'])
def test_chunks_after_a_period_take_over_and_are_not_missed(robot, guides, rtc):
    _, action = up(robot, engine__rtc=rtc)
    robot.until(lambda: len(fresh(robot.chunks)) >= 6)
    running = robot.chunks[robot.chunks.index(fresh(robot.chunks)[1]) :]
    assert {c.source for c in running} == {ActionChunk.FRESH, ActionChunk.PREVIOUS}
    assert all(chunk.deadline_met for chunk in running)
    for chunk in fresh(running):
        assert chunk.age == chunk.latency > SLOW and chunk.delay == chunk.first >= 1
    level, says, values = action.report()
    assert (level, says) == (OK, 'shadow')
    assert values['deadline misses'] == 0 and values['chunks refused'] == 0
    assert float(values['latency (ms)']) > SLOW * 1e3
    assert values['delay of the next chunk (actions)'] >= 2


def test_each_chunk_receives_the_action_prefix(robot, guides):
    up(robot)
    robot.until(lambda: len(fresh(robot.chunks)) >= 6)
    first, *others = guides
    assert first is None  # no chunk was running
    for guide in others:
        known = np.isfinite(guide.actions).all(axis=1)
        assert guide.actions.shape == (CHUNK, TINY.action_dim) and known[0]
        assert 1 <= guide.delay <= known.sum() <= CHUNK
        assert guide.weights[: guide.delay].all() and not guide.weights[~known].any()


def test_without_rtc_no_chunk_has_a_prefix_and_late_ones_are_missed(robot, guides):
    _, action = up(robot, engine__rtc='off', engine__time_budget=False)
    robot.until(lambda: len(fresh(robot.chunks)) >= 6)
    assert guides and not any(guides)
    assert action.report()[2]['deadline misses'] > 0
    assert 'latency (ms)' not in action.report()[2]


def test_new_instruction_keeps_the_prefix_while_the_arm_moves(robot, guides):
    up(robot)
    robot.until(lambda: len(fresh(robot.chunks)) >= 3)
    before = len(guides)
    robot.instruction.publish(String(data='put'))
    robot.until(lambda: len(guides) >= before + 3)
    assert all(guide is not None for guide in guides[before:])
