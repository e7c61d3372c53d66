"""A slow, blocked or paused arm holds its reference back."""

import numpy as np
import pytest
from control_cases import chunk, limits, make_executor, seen
from hypothesis import given, settings
from hypothesis import strategies as st
from stand import DT, PERIOD, Stand

from embodied_kv.control.tracking import tolerances

VELOCITY, ACCELERATION = 2.0, 10.0
LIMITS = limits(lower=-50, upper=50, velocity=VELOCITY, acceleration=ACCELERATION)
HARD = 0.2  # the derived tolerance: 0.1 s at the velocity limit


def stand_of(**options):
    stand = Stand(LIMITS, max_tracking_error=np.nan, missed_chunk_limit=100, **options)
    stand.run(0.3)
    return stand


def act(stand, seconds, target=1.5):
    """Run a policy that always commands the same position."""
    for _ in range(round(seconds / PERIOD)):
        stand.offer(np.full(15, target))
        stand.run(PERIOD)


def test_default_tolerances_follow_the_velocity_limit():
    slow = limits(3, velocity=[0.2, 2.0, 0.05])
    given_ = [np.nan, np.nan, np.nan]
    np.testing.assert_allclose(tolerances(slow, given_, [False, False, True]), [0.1, 0.2, 0.01])
    np.testing.assert_allclose(tolerances(slow, [np.inf, 0.3, np.nan]), [np.inf, 0.3, 0.1])


@settings(deadline=None, max_examples=15)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.05, 0.1, 0.3, 0.7, 1.0]), st.floats(0.1, 1.0)),
        min_size=1,
        max_size=6,
    ),
    st.booleans(),
)
def test_speed_slider_causes_no_step_and_no_excess_velocity(scales, is_published):
    share = [1.0]
    loop = dict(speed=lambda: share[0]) if is_published else {}
    stand = stand_of(loop=loop, controller=dict(replacement=False))
    for scale, seconds in scales:
        stand.controller.scale = share[0] = scale
        act(stand, seconds)
    stand.controller.scale = share[0] = 1.0
    act(stand, 2.0)
    speeds, _ = stand.rates()
    assert np.abs(speeds).max() <= 1.25 * VELOCITY
    for moment, command in stand.commands:
        if len(command.points):
            now = next(p for t, p in stand.measured if t >= moment - 1e-9)
            reach = HARD + VELOCITY * command.times[0] * 1.1
            assert np.abs(command.points[0] - now).max() <= reach
    assert stand.rejected == []


def test_the_arm_follows_a_published_speed_scaling_to_its_goal():
    stand = stand_of(loop=dict(speed=lambda: stand.controller.scale))
    stand.controller.scale = 0.3
    act(stand, 1.0)
    assert 0.02 < stand.arm[0] < 0.5 and stand.safety.state == 'armed'
    speeds, _ = stand.rates()
    assert np.abs(speeds).max() <= 0.5 * VELOCITY
    stand.controller.scale = 1.0
    act(stand, 3.0)
    np.testing.assert_allclose(stand.arm, 1.5, atol=0.01)


@pytest.mark.parametrize('replacement', [True, False])
@pytest.mark.parametrize('scale', [0.05, 0.5])
@pytest.mark.parametrize('share, least', [(0.25, 0.9), (1.0, 0.2)])
def test_the_arm_advances_at_the_published_speed_scaling(replacement, scale, share, least):
    """share: policy speed / velocity limit. least: minimum mean speed / scaled policy speed."""
    stand = stand_of(
        loop=dict(speed=lambda: stand.controller.scale), controller=dict(replacement=replacement)
    )
    speed = share * VELOCITY

    def act_on(seconds):
        for _ in range(round(seconds / PERIOD)):
            stand.offer(stand.arm + speed * DT * np.arange(15)[:, None])
            stand.run(PERIOD)

    act_on(0.6)
    stand.controller.scale = scale
    before = stand.arm[0]
    act_on(2.0)
    assert stand.arm[0] - before >= least * scale * speed * 2.0
    assert max(sent.times[-1] for sent in stand.sent()) <= stand.executor.max_open_loop + 1e-6
    assert stand.safety.state == 'armed'
    stand.controller.scale = 1.0
    act_on(0.5)
    speeds, _ = stand.rates()
    assert np.abs(speeds).max() <= 1.25 * VELOCITY


def test_without_a_published_scaling_the_speed_still_follows_the_slider():
    stand = stand_of(controller=dict(replacement=False))
    stand.controller.scale = 0.1
    act(stand, 3.0)
    speeds, _ = stand.rates()
    assert np.abs(speeds).max() <= 0.2 * VELOCITY


def test_a_pause_that_no_driver_publishes_disarms_and_nothing_moves_after_it():
    stand = stand_of(controller=dict(replacement=False))
    act(stand, 0.4)
    assert np.abs(stand.speed).max() > 0.5
    stand.controller.scale = 0.0
    act(stand, 2.0)
    assert stand.safety.state == 'disarmed' and 'does not follow' in stand.safety.idle_reason(
        stand.now
    )
    place = stand.arm.copy()
    stand.controller.scale = 1.0
    act(stand, 1.0)
    assert np.abs(stand.arm - place).max() <= 0.05


@pytest.mark.parametrize('fault', ['blocked', 'inactive'])
def test_arm_that_does_not_follow_is_held_and_disarmed(fault):
    stand = stand_of()
    act(stand, 0.4)
    if fault == 'blocked':
        stand.follows = False
    else:
        stand.controller.active = False
    act(stand, 1.0)
    assert stand.safety.state == 'disarmed'
    why = stand.safety.idle_reason(stand.now)
    assert 'joint joint_' in why and f'{stand.arm[0]:.3f}' in why
    np.testing.assert_allclose(stand.sent()[-1].points[-1], stand.arm, atol=0.01)
    began, stand.follows, stand.controller.active = len(stand.path), True, True
    act(stand, 1.0)
    assert np.abs(np.diff(np.array(stand.path)[began:], axis=0)).max() <= 1.1 * VELOCITY * 0.002


def test_arm_pushed_off_its_path_is_held():
    stand = stand_of()
    act(stand, 0.4)
    stand.follows = False
    stand.arm = stand.arm + np.array([0.0, -0.5])
    stand.run(0.2)
    assert stand.safety.state == 'disarmed'
    assert 'joint joint_1 is at' in stand.safety.idle_reason(stand.now)
    np.testing.assert_allclose(stand.sent()[-1].points[-1], stand.arm)


def test_a_joint_without_a_tolerance_may_be_held_by_an_object():
    stand = Stand(LIMITS, max_tracking_error=[np.nan, np.inf], missed_chunk_limit=100)
    stand.run(0.3)
    follow = stand._control

    def control():
        held = stand.arm[1]
        follow()
        stand.arm[1] = held

    stand._control = control
    act(stand, 3.0)
    assert stand.safety.state == 'armed' and stand.arm[1] == 0.0
    np.testing.assert_allclose(stand.arm[0], 1.5, atol=0.01)


def test_velocity_joint_that_does_not_move_as_commanded_is_reported():
    lim = limits(lower=-50, upper=50, velocity=2.0, acceleration=10.0, kinds='velocity')
    executor = make_executor(lim, max_tracking_error=np.nan)
    arm, reason, now = np.zeros(2), '', 0.0
    while not reason and now < 3.0:
        if round(now / 0.02) % 5 == 0:
            executor.take_over(chunk(np.full((10, 2), 0.5), DT), now, now, seen(now, *arm))
        reason = executor.monitor(now, seen(now, *arm))
        now += 0.02
        arm = arm + np.array([0.5, 0.0]) * 0.02  # the second joint is blocked
    assert 'joint joint_1 is at 0.000 and does not move as commanded' in reason
    assert now < 1.0


def test_sent_trajectories_last_at_most_max_open_loop():
    stand = Stand(LIMITS, missed_chunk_limit=100, max_open_loop=0.8)
    stand.run(0.3)
    ramp = 0.05 * np.arange(1, 41)
    stand.offer(ramp)  # 4 s
    stand.run(6.0)
    assert len(stand.sent()) >= 5 and stand.rejected == []
    for command in stand.sent():
        assert command.times[-1] <= 0.8 + 1e-6 and not command.velocities[-1].any()
    np.testing.assert_allclose(stand.arm, ramp[-1], atol=0.05)
    speeds, rates = stand.rates()
    assert np.abs(rates).max() <= 4 * ACCELERATION
    assert np.abs(speeds).max() <= VELOCITY


def test_arm_is_at_rest_within_max_open_loop_after_the_loop_dies():
    stand = Stand(LIMITS, missed_chunk_limit=100, max_open_loop=0.8)
    stand.run(0.3)
    stand.offer(0.1 * np.arange(1, 41))
    stand.run(1.0)
    stand.turn = lambda: None  # the process hangs
    stand.run(0.9)
    assert np.abs(stand.speed).max() < 1e-6 and stand.arm[0] < 2.0


@pytest.mark.parametrize('speed', [0.5, 1.0, 1.9])
def test_controller_does_not_wind_up_while_the_arm_is_blocked(speed):
    stand = stand_of()
    stand.offer(speed * DT * np.arange(1, 31))  # one chunk of 3 s
    stand.run(0.5)
    stand.follows = False
    for _ in range(30):
        stand.run(0.02)
        assert np.abs(stand.controller.positions - stand.arm).max() <= HARD
    stand.run(1.0)
    assert stand.safety.state == 'disarmed'
    np.testing.assert_allclose(stand.controller.positions, stand.arm, atol=0.02)


def test_cleared_instruction_ends_the_motion_while_the_reference_waits():
    stand = stand_of()
    stand.safety.set_instruction('go')
    act(stand, 0.4)
    stand.follows = False
    stand.run(0.2)
    assert stand.executor.waits
    stand.safety.set_instruction('')
    stand.run(0.1)
    assert not stand.executor.plan


def test_single_false_measurement_at_rest_starts_no_motion():
    stand = stand_of()
    act(stand, 1.0, 0.2)
    stand.run(1.0)
    false = seen(stand.now, 1.5, 1.5)
    taken = stand.executor.take_over(
        chunk(np.full((10, 2), 0.3), DT), stand.now, stand.now, false, stand.now
    )
    assert 'a second measurement must confirm it' in taken.reason
    act(stand, 0.5, 0.3)
    assert stand.safety.state == 'armed' and stand.arm[0] > 0.21


def test_an_arm_that_another_program_moved_is_confirmed_by_a_second_measurement():
    stand = stand_of()
    act(stand, 1.0, 0.2)
    stand.run(2.0)
    stand.by_hand(1.0, 1.0)
    stand.run(0.5)
    act(stand, 2.0, 1.2)
    assert stand.safety.state == 'armed' and stand.arm[0] > 1.1


def test_position_is_confirmed_by_slow_chunks():
    stand = stand_of()
    act(stand, 1.0, 0.2)
    stand.run(2.0)
    for moment, refused in ((0.0, True), (5.0, False)):
        now = stand.now + moment
        at = chunk(np.full((10, 2), 1.0), DT)
        reason = stand.executor.take_over(at, now, now, seen(now, 1.0, 1.0), now).reason
        assert bool(reason) == refused, reason


def test_failing_explanation_does_not_prevent_disarming():
    def explain():
        raise RuntimeError('a fault of a test')

    stand = stand_of(loop=dict(explain=explain))
    act(stand, 0.4)
    stand.follows = False
    act(stand, 1.5)
    assert stand.safety.state == 'disarmed'
    assert any('a fault of a test' in str(failure) for failure in stand.failures)
