"""Robots in one batch get the chunks that each gets alone, and nobody gets another's."""

import threading

import numpy as np
import pytest
from fleet_suite import Fleets


@pytest.fixture
def fleet(robots, tmp_path):
    return Fleets(robots, tmp_path)


def values(answer):
    return np.array(answer.values).reshape(-1, len(answer.joint_names))


def test_a_batch_gives_each_robot_the_chunk_that_it_gets_alone(fleet):
    node = fleet.up(scheduler='fifo')
    a, b = fleet.join(seed=1), fleet.join(seed=2)
    for robot in (a, b):  # alone, one after the other
        robot.ask(0, task='alone')
        fleet.until(lambda robot=robot: robot.got('alone'))
    assert fleet.counts['batches'] == 2

    gate = threading.Event()
    node.host.device.call(gate.wait)  # the engine is busy until both wait
    first = fleet.join(seed=3)
    first.ask(0)
    fleet.until(lambda: fleet.counts['batches'] == 3)
    for robot in (a, b):
        robot.ask(0, task='together')
    fleet.until(lambda: len(node._server.dispatcher.queue) == 2)
    gate.set()
    fleet.until(lambda: a.got('together') and b.got('together'))

    assert fleet.counts['batches'] == 4  # the two in one
    for robot in (a, b):
        alone, together = robot.got('alone')[0], robot.got('together')[0]
        np.testing.assert_allclose(values(together), values(alone), atol=1e-4)
        assert together.execution_horizon == 3
        assert len(together.confidence) == len(values(together)) == 6
    assert np.abs(values(a.got('alone')[0]) - values(b.got('alone')[0])).max() > 1e-3
    for robot, task in ((a, 'together'), (b, 'together'), (first, 'a')):
        assert {answer.task for answer in robot.answers} <= {'alone', task}
    node.host.engine.kv.check_integrity()


@pytest.mark.parametrize('capsules, kept', [(True, 3), (False, 0)])
def test_a_robot_has_one_row_for_its_capsules_and_leaves_none_behind(fleet, capsules, kept):
    node = fleet.up(capsules=capsules, language=False)
    robots = [fleet.join(seed=i) for i in range(3)]
    for round in range(2):
        for robot in robots:
            robot.ask(round)
        fleet.until(lambda n=round + 1: all(len(robot.got()) == n for robot in robots))
    kv = node.host.engine.kv
    assert kv.stats().leases == kept
    node.trigger_deactivate()
    assert kv.stats().leases == 0
    kv.frames.abandon(kv.reserve(node._server._sweep_at + 10.0))  # who reserves takes what expired
    assert kv.stats().rows_free == kv.stats().rows
    assert all(kv.frames.current(robot.namespace) is None for robot in robots)


def test_a_name_in_the_message_is_not_who_asks(fleet):
    fleet.up()
    a, b = fleet.join(seed=1), fleet.join(seed=2)
    a.ask(0, task='t')
    fleet.until(lambda: a.got('t'))
    b.ask(0, task='t')  # a task of a's name is b's own
    fleet.until(lambda: b.got('t'))
    assert len(a.got('t')) == 1
    assert not np.allclose(values(a.got('t')[0]), values(b.got('t')[0]))
