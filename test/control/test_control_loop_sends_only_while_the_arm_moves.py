"""The control loop sends commands only while the arm moves."""

import numpy as np
import pytest
from stand import DT, PERIOD, Stand

from embodied_kv.control.command import FRESH, HOLD, PREVIOUS, STOP

RAMP = np.arange(8) / 10 + 0.1


@pytest.fixture
def stand():
    stand = Stand(missed_chunk_limit=6)
    stand.run(0.02)
    return stand


def test_controllers_receive_nothing_before_the_first_chunk(stand):
    stand.loop.expect(stand.now + PERIOD)
    stand.run(1.0)
    assert stand.sent() == [] and stand.setpoints == []
    assert stand.sources() == [HOLD, STOP]  # once each


def test_fresh_chunk_is_sent_at_once_and_ends_at_rest(stand):
    stand.offer(RAMP, stamp=123)
    stand.turn()
    (_, command) = stand.commands[-1]
    assert (command.source, command.stamp, command.first, command.deadline_met) == (
        FRESH,
        123,
        1,
        True,
    )
    np.testing.assert_allclose(command.values[:, 0], RAMP, atol=1e-6)
    assert len(command.times) == len(command.points) == len(command.velocities) > 8
    assert command.times[0] >= 0.04 and not command.velocities[-1].any()


def test_sources_without_fresh_chunks_are_previous_hold_stop(stand):
    stand.offer(RAMP[:4])
    stand.run(2.0)
    said = stand.sources()
    assert said == [FRESH, *[PREVIOUS] * (len(said) - 3), HOLD, STOP]
    assert len(stand.sent()) == 1
    previous = [c for _, c in stand.commands if c.source == PREVIOUS]
    assert previous and all((c.values == stand.commands[0][1].values).all() for c in previous)
    assert [c.first for c in previous] == sorted(c.first for c in previous)
    ages = [c.age for _, c in stand.commands]
    assert ages == sorted(ages)


def test_nothing_is_sent_once_the_arm_stands(stand):
    stand.offer(RAMP[:4])
    stand.run(2.0)
    said, setpoints = len(stand.commands), len(stand.setpoints)
    stand.run(3.0)
    assert (len(stand.commands), len(stand.setpoints)) == (said, setpoints)


def test_set_points_come_at_the_controllers_rate_between_actions_and_end_at_rest(stand):
    stand.offer(RAMP)
    stand.run(2.0)
    values = np.array([setpoint.values for setpoint in stand.setpoints])
    moved = stand.executor.due(stand.now)
    assert 70 <= len(values) <= 90  # 100 per second, for 0.65 s and the braking
    assert np.abs(np.diff(values, axis=0)).max() <= 2.0 * 0.012
    assert (values[-3:] == moved.values).all()
    assert not stand.setpoints[-1].velocities.any()


def test_stop_during_a_previous_chunk_is_sent_several_times():
    stand = Stand(missed_chunk_limit=3)
    stand.run(0.02)
    stand.offer(RAMP)
    stand.run(0.3)
    began = stand.now
    stand.run(1.0)
    stops = [c for c in stand.sent(began) if c.source == STOP]
    assert len(stops) == 3 and stand.sources(began).count(STOP) <= 4
    assert stand.rejected == [] and stand.arm[0] < 0.8


def test_hold_brakes_until_the_next_fresh_chunk(stand):
    stand.offer(RAMP)
    stand.run(0.3)
    stand.loop.hold()
    stand.run(0.5)
    rest = stand.arm.copy()
    stand.run(0.3)
    assert (stand.arm == rest).all() and rest[0] < 0.65  # the chunk ends at 0.8
    assert stand.loop.leftover() is None
    stand.offer(np.full(8, 0.2))
    stand.run(0.6)
    np.testing.assert_allclose(stand.arm, 0.2, atol=1e-3)


def test_holding_an_arm_that_stands_sends_nothing(stand):
    stand.loop.hold()
    stand.run(0.3)
    assert stand.sent() == [] and stand.setpoints == []


@pytest.mark.parametrize(
    'age, others, why',
    [
        (1.2, {}, 'it answers an observation 1.20 s old; max_chunk_age is 1 s'),
        (0.9, {}, 'all 8 actions of its execution horizon have passed'),
        (0.15, dict(execution_horizon=1), 'all 1 actions of its execution horizon have passed'),
    ],
)
def test_old_observation_is_refused_with_the_reason(stand, age, others, why):
    stand.offer(RAMP, age=age, **others)
    stand.run(0.1)
    assert why in str(stand.failures[0])
    assert stand.sent() == [] and stand.executor.counters.refused == 1


def test_age_of_a_chunk_counts_from_its_observation(stand):
    stand.offer(RAMP, age=0.05)
    chunk, *_ = stand.loop._offered
    stand.loop.offer(chunk, observed=stand.now - 6.0)
    stand.run(0.1)
    assert 'an observation 6.00 s old' in str(stand.failures[0]) and stand.sent() == []


@pytest.mark.parametrize('value', [np.nan, np.inf])
def test_a_chunk_that_is_not_finite_is_refused_and_the_motion_goes_on(stand, value):
    stand.offer(RAMP)
    stand.run(0.1)
    stand.offer(RAMP * value)
    stand.run(0.1)
    assert 'must be finite' in str(stand.failures[0])
    assert stand.executor.is_moving(stand.now) and stand.sources()[-1] == PREVIOUS


def test_without_a_joint_state_nothing_moves():
    stand = Stand()
    stand.speaks = False
    stand.offer(RAMP)
    stand.run(1.0)
    assert stand.sent() == [] and 'no joint state, or none of late' in str(stand.failures[0])
    assert [len(c.values) for _, c in stand.commands] == [0] * len(stand.commands)


def test_arm_brakes_without_joint_states_and_continues_with_them(stand):
    stand.executor._tracking._max_joint_state_age = 0.1
    stand.offer(np.arange(20) / 10)
    stand.run(0.3)
    stand.speaks = False
    stand.run(0.6)
    assert not stand.executor.is_moving(stand.now) and stand.arm[0] < 0.7
    assert any('no joint state for' in str(why) for why in stand.failures)
    stand.offer(RAMP)
    stand.run(0.2)
    assert stand.loop.leftover() is None
    stand.speaks = True
    stand.run(0.02)
    stand.offer(np.full(8, 0.1))
    stand.run(1.0)
    np.testing.assert_allclose(stand.arm, 0.1, atol=1e-3)


def test_failing_publisher_does_not_end_the_loop(stand):
    publish = stand.loop._commands._publish

    def failing(command):
        stand.loop._commands._publish = publish
        raise RuntimeError('no network')

    stand.loop._commands._publish = failing
    stand.offer(RAMP)
    stand.run(0.1)
    assert 'no network' in str(stand.failures[0])
    stand.offer(RAMP)
    stand.run(DT)
    assert FRESH in stand.sources()
