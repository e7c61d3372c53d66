"""A real robot process moves simulated arms, and every kind of stop ends the motion.

The process, its policy server, controllers and cameras are those of `benchmarks.safety`. The
distances allow for a busy machine that is three times slower. The arm moves at 1 rad/s, so 1 rad
corresponds to 1 s.
"""

import signal
import time

import numpy as np
import pytest

from benchmarks.safety.world import JTC, POSITIONS, SPEED, VELOCITIES, World

ROOM = 0.3  # rad that the arm moves before the stop arrives
OPEN_LOOP = 1.0  # duration (s) of a trajectory that was sent
WATCHDOG = 0.5  # s after which the watchdog has ended a motion
STANDS = 0.05  # rad
PATIENCE = 60.0  # s
TRIALS = 5
INTERRUPTED = 'set-points were interrupted'


def rests(world, within):
    """Assert that the arm rests within so many rad of the mark, and stays there; return True."""
    world.wait(lambda: world.motion().rests, PATIENCE)
    time.sleep(1.0)
    motion = world.motion()
    assert motion.rests, f'the arm moves on: {motion}'
    assert motion.distance <= within, f'{motion}, {world.state}'
    return True


def is_disarmed(world, *words):
    """Assert that the arm is disarmed for a reason with one of these words; return True."""
    assert world.wait(lambda: world.state[0] == 'disarmed', PATIENCE), world.state
    assert any(word in world.state[1] for word in words), world.state
    return True


def test_takeover_then_stop_brings_a_trajectory_to_rest(ros):
    with World(JTC) as world:
        world.act()
        speed = world.speed()
        assert world.call('takeover')[0]
        time.sleep(0.05)
        success, response = world.call('stop')
        assert success and ('at rest in' in response or 'at rest;' in response)
        assert rests(world, speed**2 / (2 * world.acceleration) + ROOM)
        assert world.state[0] == 'stopped'


@pytest.mark.slow
def test_a_stop_responds_when_the_arm_is_at_rest(ros):
    with World(JTC) as world:
        success, response = world.act().call('stop')
        assert success and 'braking, at rest in' in response
        assert rests(world, SPEED**2 / (2 * world.acceleration) + ROOM)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['SIGKILL', 'SIGSTOP', 'SIGTERM'])
@pytest.mark.parametrize(
    'kind, open_loop', [(JTC, OPEN_LOOP), (VELOCITIES, WATCHDOG), (POSITIONS, 0.0)]
)
def test_the_arm_rests_after_a_signal_to_the_process(ros, kind, open_loop, name):
    with World(kind) as world:
        world.act().process.signal(getattr(signal, name))
        if name == 'SIGTERM':
            assert rests(world, SPEED**2 / (2 * world.acceleration) + ROOM)
            assert world.wait(lambda: world.has_ended, PATIENCE)
        else:
            assert rests(world, SPEED * open_loop + ROOM)


@pytest.mark.slow
@pytest.mark.parametrize('kind', [JTC, POSITIONS, VELOCITIES])
def test_a_blocked_arm_is_disarmed_and_does_not_jump_when_released(ros, kind):
    with World(kind, kind.scheduled) as world:
        for _ in range(TRIALS):
            world.act().arm.blocked = True
            assert is_disarmed(world, 'follow', 'tracking_error', INTERRUPTED)
            if INTERRUPTED not in world.state[1]:
                break
            world.arm.blocked = False  # a busy machine interrupted the commands first
        assert world.arm.blocked, f'the commands were interrupted {TRIALS} times'
        time.sleep(0.5)
        world.count()
        world.arm.blocked = False
        assert rests(world, 0.15)


@pytest.mark.slow
def test_an_inactive_controller_disarms_and_the_arm_does_not_jump_when_activated(ros):
    with World(JTC, JTC.scheduled) as world:
        controller = world.arm.controller
        controller.active = False
        world.mark()
        assert world.arm_and_tell()[0]
        assert is_disarmed(world, 'follow', 'tracking_error')
        assert 'the controller is inactive' in controller.rejected
        controller.activate(world.arm.position)
        assert rests(world, STANDS)


@pytest.mark.slow
def test_arming_is_refused_without_a_subscriber(ros):
    with World(JTC, topic='another_controller/joint_trajectory') as world:
        time.sleep(1.0)
        world.mark()
        armed, response = world.call('arm')
        assert not armed and 'no controller subscribes to' in response
        world.tell('move the first joint')
        assert rests(world, STANDS)


@pytest.mark.slow
@pytest.mark.parametrize('kind', [JTC, POSITIONS])
def test_a_policy_in_degrees_is_refused(ros, kind):
    with World(kind, kind.degrees) as world:
        world.mark()
        assert world.arm_and_tell()[0]
        assert world.wait(lambda: 'the newest was refused' in world.state[1], PATIENCE)
        assert 'unit' in world.state[1] or 'max_relative_target' in world.state[1]
        assert rests(world, STANDS)


@pytest.mark.slow
def test_joint_states_in_degrees_forbid_arming(ros):
    with World(JTC) as world:
        world.arm.distort = np.degrees
        time.sleep(1.0)
        armed, response = world.call('arm')
        assert not armed and 'degrees' in response


@pytest.mark.slow
def test_a_stop_outlives_deactivation_and_activation(ros):
    with World(JTC) as world:
        assert world.act().call('stop')[0]
        assert world.change('deactivate') and world.change('activate')
        assert world.wait(lambda: world.state[0] == 'stopped', PATIENCE)
        time.sleep(1.0)
        world.mark()
        armed, response = world.call('arm')
        assert not armed and 'reset' in response
        world.tell('move the first joint')
        assert rests(world, STANDS)
        assert world.call('reset')[0]
        world.act()


@pytest.mark.slow
def test_process_that_hung_longer_than_resume_within_does_not_resume(ros):
    with World(JTC, parameters={'resume_within': 3.0}) as world:
        world.act().process.signal(signal.SIGSTOP)
        time.sleep(5.0)
        world.mark()
        world.process.signal(signal.SIGCONT)
        assert is_disarmed(world, 'stood', 'suspended')
        assert rests(world, STANDS)


@pytest.mark.slow
def test_trajectories_are_stamped_with_their_start(ros):
    with World(JTC) as world:
        stamps = world.act().arm.controller.stamps
        now = world.node.get_clock().now().nanoseconds
        assert all(abs(now - stamp) < 5e9 for stamp in stamps[-3:])
        assert not world.arm.controller.rejected
