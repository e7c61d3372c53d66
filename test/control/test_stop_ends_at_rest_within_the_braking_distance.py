"""After a stop in any state, the commanded motion ends at rest within the braking distance.

The same holds for a disarming, a takeover and the end of the control loop, for controllers of
trajectories, positions and velocities. The distance is counted from the measured position.
"""

import threading

import numpy as np
import pytest
from control_cases import limits
from hypothesis import given, settings
from hypothesis import strategies as st
from stand import PERIOD, TICK, Stand

VELOCITY, ACCELERATION = 2.0, 10.0
RAMP = np.arange(30) / 10 + 0.1
STATES = ('acting', 'taken over', 'disarmed', 'starved', 'falling back', 'moved by another')
ENDS = ('stop', 'disarm', 'take over', 'end')
MIXED = ('velocity', 'position', 'position')


class SetpointStand(Stand):
    """An arm whose controllers keep their last position or velocity and have no timeout."""

    def __init__(self, kind, **options):
        wide = dict(lower=-50, upper=50, velocity=VELOCITY, acceleration=ACCELERATION)
        super().__init__(limits(**wide, kinds=kind), **options)
        self.kind, self.kept, self.received = kind, None, []
        self.loop._commands._publish_setpoint = self.receive

    def receive(self, setpoint):
        self.received.append((self.now, self.arm.copy(), setpoint))
        if self.kind == 'velocity':
            self.kept = setpoint.velocities
        elif setpoint.positions is not None:
            self.kept = setpoint.positions

    def _control(self):
        if self.kept is not None:
            self.arm = self.arm + self.kept * TICK if self.kind == 'velocity' else self.kept.copy()
        self.path.append(self.arm.copy())
        # The arm does not move between two set-points (10 ms): measure speeds over two of them.
        path = np.array(self.path[-16:])
        spans = np.abs(path[10:] - path[:-10]) / (10 * TICK)
        self.speed = spans.max(axis=0, initial=0.0)


class MixedStand(Stand):
    """An arm whose first joint follows trajectories, and whose second follows set-points."""

    def __init__(self, lim, **options):
        super().__init__(lim, loop=dict(setpoint_joints=np.array([False, True])), **options)
        self.kept = None
        self.loop._commands._publish_setpoint = self.receive

    def receive(self, setpoint):
        if setpoint.positions is not None:
            self.kept = setpoint.positions[1]

    def _control(self):
        before = self.arm[1]
        super()._control()
        here = before if self.kept is None else self.kept
        self.arm = np.array([self.arm[0], here])
        self.path[-1] = self.arm.copy()
        past = np.array(self.path[-16:])[:, 1]
        spans = np.abs(past[10:] - past[:-10]) / (10 * TICK)
        self.speed = np.array([self.speed[0], spans.max(initial=0.0)])


def make(kind, **options):
    lim = limits(lower=-50, upper=50, velocity=VELOCITY, acceleration=ACCELERATION)
    if kind in ('trajectory', 'mixed'):
        stand = Stand if kind == 'trajectory' else MixedStand
        return stand(lim, missed_chunk_limit=5, **options)
    loop = dict(setpoint_joints=np.ones(2, bool))
    return SetpointStand(kind, missed_chunk_limit=5, loop=loop, **options)


def bring_into(stand, state, seconds):
    """Start a motion and bring the arm into a state in which it may still move."""
    stand.run(0.3)
    for _ in range(5):
        stand.offer(stand.arm + RAMP[:, None])
        stand.run(PERIOD)
    if state == 'taken over':
        stand.safety.take_over()
    elif state == 'disarmed':
        stand.safety.disarm()
    elif state == 'falling back':
        stand.run(0.45)
    elif state == 'starved':
        stand.speaks = False
        stand.run(0.3)
    elif state == 'moved by another':
        stand.safety.take_over()
        stand.run(1.0)
        stand.move_by_another_program(stand.arm[0] + 3.0, seconds=3.0)
        stand.run(0.5)
    stand.run(seconds)


def end(stand, how):
    """End control in one of the ENDS."""
    if how == 'stop':
        stand.safety.stop('a person')
    elif how == 'disarm':
        stand.safety.disarm()
    elif how == 'take over':
        stand.safety.take_over()
    else:
        stand.loop.stop()  # the thread does not run here
    stand.turn()


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from(['trajectory', 'position', 'velocity', 'mixed']),
    st.sampled_from(STATES),
    st.sampled_from(ENDS),
    st.floats(0, 0.2),
)
def test_every_end_of_control_ends_at_rest_within_the_braking_distance(kind, state, how, seconds):
    if state == 'moved by another' and (kind != 'trajectory' or how != 'stop'):
        state = 'acting'  # only a stop brakes the motion of another program
    stand = make(kind)
    bring_into(stand, state, seconds)
    place, speed = stand.arm.copy(), np.abs(stand.speed)
    end(stand, how)
    stand.run(1.5)
    assert np.abs(np.diff(np.array(stand.path)[-50:], axis=0)).max() < 1e-9
    late = 0.05  # s from a set-point or a joint state until the next, and LEAD
    way = speed**2 / (2 * ACCELERATION) + speed * late + 0.02
    assert (np.abs(stand.arm - place) <= way).all()


@pytest.mark.parametrize('how', ENDS)
def test_velocity_controllers_receive_zero_at_every_end_of_control(how):
    stand = make('velocity')
    bring_into(stand, 'acting', 0.0)
    assert stand.kept.any()
    end(stand, how)
    stand.run(1.0)
    assert not stand.kept.any() and not stand.received[-1][2].velocities.any()


def test_stop_sends_zero_velocity_before_any_motion():
    stand = make('velocity')
    stand.run(0.1)
    stand.safety.stop('a person')
    stand.run(0.1)
    assert stand.received and not any(s.velocities.any() for *_, s in stand.received)


@settings(deadline=None, max_examples=12)
@given(st.sampled_from(STATES[:5]), st.sampled_from(ENDS), st.floats(0, 0.2))
def test_position_controllers_never_receive_zeros_or_a_step(state, how, seconds):
    stand = make('position', start=(1.0, 2.0))
    bring_into(stand, state, seconds)
    end(stand, how)
    stand.run(1.5)
    for _, arm, setpoint in stand.received:
        if setpoint.positions is not None:
            assert np.abs(setpoint.positions - arm).max() <= VELOCITY * 0.1
            assert setpoint.positions.min() > 0.9


def test_takeover_ends_with_the_measured_position_once():
    stand = make('position')
    bring_into(stand, 'acting', 0.0)
    stand.safety.take_over()
    stand.run(1.5)
    assert not stand.executor.has_reference
    count, last = len(stand.received), stand.received[-1][2]
    np.testing.assert_allclose(last.positions, stand.arm, atol=1e-9)
    stand.run(1.0)
    assert len(stand.received) == count


def test_takeover_sends_no_outdated_measured_position():
    stand = make('position')
    bring_into(stand, 'disarmed', 1.0)
    assert stand.executor.has_reference and not stand.executor.is_moving(stand.now)
    stand.speaks, count = False, len(stand.received)
    stand.run(0.4)
    stand.safety.take_over()
    stand.run(1.0)
    assert not stand.executor.has_reference
    assert len(stand.received) == count


def test_a_clock_that_is_set_back_brakes_the_arm():
    stand = make('velocity')
    bring_into(stand, 'acting', 0.0)
    stand.now -= 60.0
    stand.loop.abandon()
    stand.turn()
    stand.run(0.5)
    assert not stand.kept.any()


def test_stopping_twice_brakes_twice():
    stand = make('trajectory')
    bring_into(stand, 'moved by another', 0.0)
    stand.safety.stop('a person')
    stand.run(0.5)
    stand.move_by_another_program(stand.arm[0] + 3.0, seconds=3.0)
    stand.run(0.5)
    place, speed = stand.arm.copy(), stand.speed.copy()
    assert (speed > 0.5).all()
    stand.safety.stop('again')
    stand.run(1.0)
    assert (stand.arm - place <= speed**2 / (2 * ACCELERATION) + 0.1).all()
    assert np.abs(np.diff(np.array(stand.path)[-50:], axis=0)).max() < 1e-9


@pytest.mark.parametrize('how', [*ENDS[:3], 'nothing'])
@pytest.mark.parametrize('seconds', [1.0, 1.9, 6.0])
def test_arm_that_came_to_rest_during_a_suspension_stays_at_rest(how, seconds):
    stand = make('trajectory')
    stand.run(0.3)
    stand.offer(stand.arm + 0.1 * np.arange(1, 21)[:, None])  # 2 s, of which 1 s is sent
    stand.run(0.8)
    stand.turn = lambda: None  # the process is suspended
    stand.run(seconds)
    place = stand.arm.copy()
    assert np.abs(stand.speed).max() < 1e-9
    del stand.turn
    if how != 'nothing':
        end(stand, how)
    stand.run(1.0)
    np.testing.assert_allclose(stand.arm, place, atol=1e-6)


@pytest.mark.parametrize('delay', [0.0, 0.02, 0.05, 0.08])
@pytest.mark.parametrize('speed', [0.2, 0.5, 1.0])
def test_stop_brakes_another_program_with_delayed_joint_states(delay, speed):
    stand = make('trajectory', state_delay=delay)
    stand.run(0.3)
    stand.move_by_another_program(stand.arm[0] + 3 * speed, seconds=3.0)
    stand.run(1.0)
    place = stand.arm.copy()
    stand.safety.stop('a person')
    stand.run(1.5)
    assert (np.abs(stand.arm - place) <= speed**2 / (2 * ACCELERATION) + 0.02).all()


def test_stop_sends_no_outdated_position_to_a_controller_in_use():
    lim = limits(3, lower=-50, upper=50, velocity=2.0, acceleration=10.0)
    lim = type(lim)(lim.joints, lim.lower, lim.upper, lim.velocity, lim.acceleration, MIXED)
    stand = Stand(lim, start=(0.0, 0.0, 0.0), loop=dict(setpoint_joints=np.ones(3, bool)))
    stand.run(0.3)
    stand.offer(np.tile([0.2, 0.3, 0.3], (8, 1)))
    stand.run(0.3)
    stand.safety.disarm()
    stand.run(1.0)
    stand.setpoints.clear()
    stand.safety.stop('a person')
    stand.run(0.2)
    assert stand.setpoints and all(s.positions is None for s in stand.setpoints)
    assert not any(s.velocities.any() for s in stand.setpoints)


@pytest.mark.parametrize('how', ['take over', 'end'])
def test_braking_ends_while_the_controllers_are_paused(how):
    speed = [1.0]
    lim = limits(lower=-50, upper=50, velocity=VELOCITY, acceleration=ACCELERATION)
    stand = Stand(lim, loop=dict(speed=lambda: speed[0]))
    bring_into(stand, 'acting', 0.0)
    stand.controller.scale = speed[0] = 0.0
    end(stand, how)
    stand.run(2.0)
    assert not stand.executor.is_moving(stand.now) and stand.loop._commands.due == np.inf


@pytest.mark.parametrize('seconds', [0.1, 0.15, 0.3])
def test_suspension_brakes_an_arm_with_both_controller_types(seconds):
    lim = limits(lower=-50, upper=50, velocity=VELOCITY, acceleration=ACCELERATION)
    stand = Stand(lim, missed_chunk_limit=100)  # trajectories and set-points
    stand.run(0.3)
    stand.offer(stand.arm + 0.15 * np.arange(1, 21)[:, None])
    stand.run(0.5)
    stand.turn = lambda: None
    stand.run(seconds)
    del stand.turn
    stand.turn()
    stand.run(1.0)
    speeds, _ = stand.rates()
    assert speeds.min() >= -0.05 and speeds.max() <= 1.1 * VELOCITY


def test_a_braking_that_is_not_published_is_not_confirmed():
    stand = Stand()
    stand.run(0.1)
    stand.offer(RAMP)
    stand.run(0.3)
    assert stand.executor.is_moving(stand.now)
    stand.loop._publish = None  # each call fails
    stand.safety.stop('operator')
    left = []
    asked = threading.Thread(target=lambda: left.append(stand.loop.confirm(10.0)))
    asked.start()
    while asked.is_alive():
        stand.turn()
        asked.join(0.01)
    assert left == [None]
