"""Below full speed an arm must follow; a paused robot does not execute an old chunk later."""

import numpy as np
import pytest
from stand import PERIOD, Stand

from embodied_kv.control.command import STOP
from embodied_kv.control.safety_state_machine import ARMED

FAR = np.linspace(0.05, 1.5, 30)


def slowed(speed, **loop):
    """Return an arm whose robot runs at a share of its speed, which tests change."""
    share = [speed]
    stand = Stand(loop=dict(speed=lambda: share[0], **loop))
    stand.run(0.1)
    return stand, share


@pytest.mark.parametrize('speed', [1.0, 0.99, 0.5])
def test_an_arm_that_is_blocked_within_its_tolerance_is_disarmed(speed):
    stand, _ = slowed(speed)
    stand.follows = False
    for _ in range(30):
        stand.offer(stand.arm[0] + 0.2 * np.ones(10))  # tolerance 0.3, half of it exceeded
        stand.run(PERIOD)
    assert stand.safety.state != ARMED and 'does not follow' in stand.safety.fault


def test_a_paused_robot_is_not_disarmed():
    stand, _ = slowed(0.0)
    stand.follows = False
    for _ in range(20):
        stand.offer(stand.arm[0] + 0.2 * np.ones(10))
        stand.run(PERIOD)
    assert stand.safety.state == ARMED


def test_an_old_chunk_is_not_executed_when_a_long_pause_ends():
    stand, share = slowed(1.0, by_execution=True, resume_within=1.0)
    stand.offer(FAR)
    stand.run(0.3)
    share[0] = 0.0
    stand.follows = False
    stand.run(2.0)
    assert stand.sources()[-1] == STOP and not stand.executor.plan
    before = stand.executor.due(stand.now).positions
    share[0] = 1.0
    stand.run(0.5)
    np.testing.assert_allclose(stand.executor.due(stand.now).positions, before, atol=0.02)


def test_a_short_pause_continues_the_chunk():
    stand, share = slowed(1.0, by_execution=True, resume_within=1.0)
    stand.offer(FAR)
    stand.run(0.3)
    share[0] = 0.0
    stand.run(0.5)
    assert stand.executor.plan


def test_braking_in_a_pause_does_not_move_the_reference():
    stand, share = slowed(1.0, by_execution=True, resume_within=1.0)
    stand.offer(FAR)
    stand.run(0.4)
    share[0], stand.follows = 0.0, False
    stand.run(0.2)
    stand.arm[:] = stand.executor.due(stand.now).positions
    before = stand.arm.copy()
    stand.run(2.0)
    assert not stand.executor.plan
    np.testing.assert_allclose(stand.executor.rest()[0], before, atol=0.01)


def test_a_short_pause_with_an_arm_behind_its_reference_disarms_nothing():
    stand, share = slowed(1.0)
    for _ in range(10):
        stand.offer(np.linspace(stand.arm[0] + 0.1, stand.arm[0] + 1.0, 10))
        stand.run(PERIOD)
    stand.follows = False  # the robot is paused before the topic tells it
    stand.run(0.1)
    share[0] = 0.0
    stand.run(1.0)
    share[0], stand.follows = 1.0, True
    stand.run(0.5)
    assert stand.safety.state == ARMED
