"""A stop brakes what another program moves from its measurement, and commands nothing unknown."""

import math
from dataclasses import replace

import numpy as np
import pytest
from control_cases import chunk, limits, make_executor, seen
from stand import Stand

from embodied_kv.control.command import STOP, Measured
from embodied_kv.control.trajectory_executor import STALE

NOW = 100.0


def moving(age=0.05, position=(0.5, math.nan, 0.2), velocity=(0.4, math.nan, 0.0)):
    """Return a measurement of an arm whose first joint moves and whose second one is unknown."""
    return Measured(np.array(position), NOW - age, np.array(velocity))


@pytest.fixture
def executor():
    return make_executor(limits(3, velocity=1.0, acceleration=10.0))


def test_a_joint_that_is_not_measured_is_not_commanded(executor):
    executor.brake(NOW, STOP, moving(), foreign=True)
    times, points, _ = executor.points(NOW, moving())
    assert len(times) and np.isnan(points[:, 1]).all()
    assert np.isfinite(points[:, [0, 2]]).all() and (points[:, 0] >= 0.5).all()
    assert np.isnan(executor.due(NOW).values[1]) and np.isnan(executor.at_rest().values[1])
    assert len(executor.rest()) == 0


def test_the_rest_of_an_earlier_motion_is_not_commanded_either(executor):
    executor.take_over(chunk([[0.3, 0.3, 0.3]]), NOW - 9.9, NOW - 10.0, seen(NOW - 10, 0, 0, 0))
    assert executor.rest()[0, 1] > 0.05
    executor.brake(NOW, STOP, moving(), foreign=True)
    assert np.isnan(executor.points(NOW)[1][:, 1]).all()


def test_after_a_new_motion_each_joint_is_commanded(executor):
    executor.brake(NOW, STOP, moving(), foreign=True)
    later = NOW + 5.0
    taken = executor.take_over(
        chunk([[0.6, 0.1, 0.2]]), later + 0.1, later, seen(later, 0.6, 0, 0.2)
    )
    assert not taken.reason and np.isfinite(executor.points(later)[1]).all()


def test_a_joint_without_a_driver_is_never_commanded_by_a_stop():
    wide = limits(2, lower=-np.inf, upper=np.inf)
    executor = make_executor(wide)
    told = Measured(np.array([0.5, math.nan]), NOW, np.array([0.4, math.nan]))
    executor.brake(NOW, STOP, told, foreign=True)
    assert np.isnan(executor.points(NOW)[1][:, 1]).all()


def test_an_old_measurement_makes_no_motion_and_no_reference(executor):
    executor.brake(NOW, STOP, moving(age=STALE + 0.1), foreign=True)
    assert not executor.is_moving(NOW) and not executor.has_reference


@pytest.mark.parametrize(
    ('measured', 'reason'),
    [
        (None, 'not known'),
        (moving(age=STALE + 0.1), 'not known'),
        (moving(), 'joint_0 moves'),
        (moving(velocity=(0.0, math.nan, 0.0)), 'joint_1 is not measured'),
        (seen(NOW, 0.5, 0.1, 0.2), ''),
    ],
    ids=['none', 'old', 'moves', 'unmeasured', 'stands'],
)
def test_the_reason_is_stated_why_an_arm_may_move(executor, measured, reason):
    told = executor.unrest(NOW, measured)
    assert reason in told and bool(told) == bool(reason)


@pytest.fixture
def stand():
    """Return an arm that another program moves for 3 s."""
    stand = Stand()
    stand.run(0.2)
    stand.move_by_another_program(3.0, seconds=3.0)
    stand.run(0.5)
    return stand


def test_the_arm_is_braked_as_soon_as_its_measurement_is_recent(stand):
    stand.speaks = False
    stand.run(STALE + 0.1)
    stand.safety.stop('a test')
    stand.run(0.1)
    assert not stand.sent()
    stand.speaks = True
    stand.run(0.8)
    assert stand.sent() and all(command.source == STOP for command in stand.sent())
    before = stand.arm.copy()
    stand.run(0.5)
    np.testing.assert_allclose(stand.arm, before, atol=1e-6)
    assert stand.arm[0] < 2.0


def test_an_arm_that_moves_long_after_the_stop_is_not_commanded():
    stand = Stand()
    stand.run(0.2)
    stand.safety.stop('a test')
    stand.run(1.5)
    stand.move_by_another_program(1.0, seconds=1.0)
    stand.run(1.5)
    assert not stand.sent() and stand.arm[0] == pytest.approx(1.0, abs=0.01)


def test_a_reset_during_a_takeover_publishes_no_position_of_a_moving_arm(stand):
    stand.safety.take_over()
    stand.safety.stop('a test')
    stand.run(1.5)  # it brakes what the operator moves
    stand.move_by_another_program(3.0, seconds=3.0)
    stand.run(0.5)
    count = len(stand.setpoints)
    stand.safety.reset()
    stand.run(0.5)
    assert len(stand.setpoints) == count
    assert not stand.executor.has_reference


def test_the_watch_continues_until_each_joint_is_measured(stand):
    measure, publish, hides = stand.loop._measure, stand.loop._publish, [True]

    def partial():
        measured = measure()
        if measured is None or not hides[0]:
            return measured
        return replace(measured, position=measured.position * [1.0, math.nan])

    def to_complete_controllers(command):  # as a node sends it
        if np.isfinite(command.points).all():
            publish(command)

    stand.loop._measure, stand.loop._publish = partial, to_complete_controllers
    stand.safety.stop('a test')
    stand.run(0.3)
    assert not stand.sent() and stand.executor.is_partial
    assert 'joint_0 moves' in stand.loop.unrest()
    hides[0] = False
    stand.run(1.0)
    assert stand.sent() and not stand.executor.is_partial
    before = stand.arm.copy()
    stand.run(0.5)
    np.testing.assert_allclose(stand.arm, before, atol=1e-6)
    assert stand.loop.unrest() == ''


def test_a_chunk_of_a_cleared_instruction_is_refused():
    stand = Stand()
    stand.run(0.2)
    observed = stand.now
    stand.safety.set_instruction('push', stand.now)
    stand.run(0.1)
    stand.safety.set_instruction('', stand.now)
    stand.safety.set_instruction('reach', stand.now)
    stand.offer(np.linspace(0.1, 1.0, 10), age=stand.now - observed)
    stand.run(0.1)
    assert not stand.sent() and 'was cleared' in str(stand.failures[-1])
    stand.offer(np.linspace(0.1, 1.0, 10), age=0.01)
    stand.run(0.1)
    assert stand.sent()
