"""An arm that another program moves is neither armed nor moved until it is at rest."""

import numpy as np
import pytest
from stand import Stand

from embodied_kv.control.safety_state_machine import RefusedError

FAR = np.linspace(0.1, 1.5, 15)


@pytest.fixture
def given_back():
    """Return an arm that was given back to the suite while another program moves it."""
    stand = Stand()
    stand.run(0.1)
    stand.offer(FAR)
    stand.run(0.3)
    stand.safety.take_over()
    stand.run(1.0)
    stand.move_by_another_program(1.5, seconds=1.0)
    stand.run(0.5)
    stand.safety.give_back(stand.now)
    stand.run(0.02)
    return stand


def test_chunk_is_refused_with_joint_and_speed_while_the_arm_moves(given_back):
    stand = given_back
    sent = len(stand.sent())
    stand.offer(FAR, age=0.01)
    stand.run(0.002)
    assert len(stand.sent()) == sent
    assert 'joint joint_0 still moves, at ' in str(stand.failures[-1])
    assert 'let it come to rest' in stand.safety.idle_reason(stand.now)


def test_motion_starts_at_the_measured_position_once_the_arm_stands(given_back):
    stand = given_back
    stand.run(1.5)  # the controller completes its trajectory
    assert not stand.safety.missing(stand.now)
    rest = stand.arm.copy()
    stand.offer(rest[0] - FAR)
    began = len(stand.path)
    stand.run(0.3)
    _, rates = stand.rates()
    assert np.abs(rates[began - 1 :]).max() <= 40
    assert (stand.arm < rest).all()


def test_an_arm_that_swings_is_not_armed():
    stand = Stand(armed=False)
    stand.controller.positions = np.array([0.02, 0.0])
    stand.run(0.05)
    with pytest.raises(RefusedError, match='joint joint_0 still moves'):
        stand.safety.arm(stand.now)
    stand.run(0.2)
    stand.safety.arm(stand.now)


def test_arm_moved_by_another_program_after_a_motion_is_not_armed():
    stand = Stand()
    stand.run(0.1)
    stand.offer(FAR[:5])
    stand.run(2.0)
    stand.safety.disarm()
    stand.run(0.1)
    stand.move_by_another_program(2.0, seconds=2.0)
    stand.run(0.5)
    with pytest.raises(RefusedError, match='joint joint_0 still moves, at 0'):
        stand.safety.arm(stand.now)


def test_standstill_is_unknown_before_a_second_joint_state():
    stand = Stand(armed=False)
    stand.run(0.002)
    with pytest.raises(RefusedError, match='not known yet whether joint joint_0 stands'):
        stand.safety.arm(stand.now)
