"""With `rtc` a robot tells its fleet what its arm does meanwhile, and late chunks take over."""

import time

import numpy as np
import pytest
from test_fleet_robot_executes_answers import Server, sources

from embodied_kv.config import TINY
from embodied_kv.control.trajectory_executor import FRESH, PREVIOUS
from embodied_kv.nodes.common.conversions import nanoseconds
from embodied_kv.nodes.common.lifecycle_node import FAILURE
from embodied_kv.nodes.fleet.client_node import FleetClient, FleetClientParams

CHUNK, DT = TINY.chunk_size, TINY.action_dt
HORIZON = 5  # actions


@pytest.fixture
def up(robot):
    """A client that only watches, as nothing follows it, and its fleet, played."""

    def make(**options):
        server = Server(robot)
        options = dict(shadow=True, rtc=True, rtc_horizon=HORIZON, request_ahead=4) | options
        node = robot.up(FleetClient, retry_interval=10.0, **options)
        robot.until(lambda: server.asked)
        return node, server

    return make


def answer(node, server, **other):
    """The whole chunk of the round that is asked for, 0.1 rad further at each action."""
    names = list(node.embodiment.axes)
    ramp = np.repeat(0.1 * np.arange(CHUNK, dtype=np.float32)[:, None], len(names), axis=1)
    server.answer(server.asked[-1], names, CHUNK, CHUNK, values=ramp.ravel(), **other)


def test_the_first_request_tells_nothing_and_the_next_what_runs(robot, up):
    node, server = up()
    assert not len(server.asked[0].leftover) and not len(server.asked[0].weights)
    answer(node, server)
    robot.until(lambda: server.asked[-1].round == 1)
    asked, names = server.asked[-1], list(node.embodiment.axes)
    rows = np.array(asked.leftover).reshape(CHUNK, len(names))
    known = np.isfinite(rows).all(axis=1)
    count = int(known.sum())
    assert asked.joint_names == names and 1 <= count < CHUNK and known[:count].all()
    steps = np.diff(rows[:count, :-1], axis=0)  # the gripper is at its limit
    assert (np.abs(steps - 0.1) < 0.02).all()  # as the chunk goes on, dt for dt
    plan, since = node._control.executor.plan, robot.now() / 1e9 - time.monotonic()
    observed = nanoseconds(asked.observation.header.stamp) / 1e9 - since
    done = (observed - plan.moments[0]) / DT  # actions, at 0.1 rad each
    assert rows[0, 0] == pytest.approx(0.1 * done, abs=0.02)
    weights = np.array(asked.weights)
    assert 1 <= asked.delay <= count
    assert (weights[: asked.delay] == 1).all() and not weights[min(HORIZON, count) :].any()


def test_an_answer_that_comes_while_the_chunk_lasts_is_no_miss(robot, up):
    node, server = up()
    answer(node, server)
    robot.until(lambda: server.asked[-1].round == 1)
    robot.until(lambda: sources(robot.chunks)[-1] == PREVIOUS)
    answer(node, server)
    robot.until(lambda: sources(robot.chunks).count(FRESH) == 2)
    heard = sources(robot.chunks)
    running = robot.chunks[heard.index(FRESH) :]
    assert all(chunk.deadline_met for chunk in running)
    fresh = [chunk for chunk in running if chunk.source == 0][1]
    assert fresh.latency > 0 and fresh.delay == int(np.ceil(fresh.latency / DT - 1e-6))
    values = node.report()[2]
    assert values['deadline misses'] == 0 and float(values['latency (ms)']) > 0


def test_the_time_that_the_arm_stood_is_counted_once(robot, up):
    node, server = up()
    robot.spin(0.4)
    answer(node, server)
    robot.until(lambda: FRESH in sources(robot.chunks))
    heard = time.monotonic()
    plan = node._control.executor.plan
    assert plan.moments[0] <= heard  # its first action is due when it takes over, not later still
    assert len(plan.actions) == CHUNK  # and none of them has passed
    fresh = next(chunk for chunk in robot.chunks if chunk.source == 0)
    assert fresh.delay == 0 and fresh.latency > 0.4


def test_where_nothing_more_comes_the_chunk_ends_before_periods_are_missed(robot, up):
    node, server = up(stop_after=2)
    answer(node, server)
    robot.until(lambda: FRESH in sources(robot.chunks))
    robot.until(lambda: node._control.executor.counters.stopped)
    heard = robot.chunks[sources(robot.chunks).index(FRESH) :]
    assert all(c.deadline_met for c in heard if sources([c])[0] == PREVIOUS)
    assert node._control.executor.counters.held <= 1  # then it stops, not a chunk later


def test_off_requests_tell_nothing(robot, up):
    node, server = up(rtc=False)
    answer(node, server)
    robot.until(lambda: server.asked[-1].round == 1)
    assert not len(server.asked[-1].leftover) and server.asked[-1].delay == 0
    assert 'latency (ms)' not in node.report()[2]


def test_a_schedule_that_there_is_not_is_refused(robot):
    node = robot.bring(FleetClient, rtc_schedule='cubic')
    assert node.trigger_configure() == FAILURE
    with pytest.raises(ValueError, match='none of linear, exponential, ones, zeros'):
        node._ask_params.read(FleetClientParams)
