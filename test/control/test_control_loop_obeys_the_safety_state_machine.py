"""A disarmed arm does not move, a stop ends every motion, and a takeover ends all commands."""

import numpy as np
import pytest
from stand import Stand

from embodied_kv.control.command import STOP

RAMP = np.arange(20) / 10 + 0.1


@pytest.fixture
def stand():
    stand = Stand(missed_chunk_limit=100)
    stand.run(0.02)
    return stand


def moving(stand):
    """Return a stand that moves at about 1 rad/s."""
    stand.offer(RAMP)
    stand.run(0.5)
    assert stand.executor.is_moving(stand.now) and stand.speed[0] > 0.5
    return stand


def test_an_arm_that_is_not_armed_does_not_move():
    stand = Stand(armed=False)
    stand.run(0.02)
    stand.offer(RAMP)
    stand.run(0.5)
    assert stand.sent() == [] and stand.setpoints == [] and not stand.arm.any()
    assert 'the arm is disarmed' in str(stand.failures[0])


def test_observation_from_before_arming_is_not_executed():
    stand = Stand(armed=False)
    stand.run(0.1)
    stand.safety.arm(stand.now)
    stand.offer(RAMP, age=0.05)
    stand.run(0.02)
    assert stand.sent() == [] and 'before the arm was armed' in str(stand.failures[0])
    stand.run(0.1)
    stand.offer(RAMP, age=0.05)
    stand.run(0.02)
    assert stand.sent()


@pytest.mark.parametrize('end', ['stop', 'disarm'])
def test_stop_brakes_along_the_reference_and_is_sent_several_times(stand, end):
    moving(stand)
    place, speed, began = stand.arm.copy(), stand.speed.copy(), stand.now
    stand.safety.stop('a person') if end == 'stop' else stand.safety.disarm()
    stand.turn()
    stand.run(1.0)
    sent = stand.sent(began)
    assert [c.source for c in sent] == [STOP] * 3
    assert stand.commands[-1][0] <= began + 0.1
    way = np.array(stand.path)[-600:]
    np.testing.assert_allclose(stand.arm, place + speed**2 / 20, atol=0.02)
    assert (np.diff(way, axis=0) >= -1e-3).all()  # forwards along the path
    assert stand.loop.leftover() is None


def test_after_a_stop_nothing_moves_until_it_was_reset_and_armed(stand):
    moving(stand)
    stand.safety.stop('a person')
    stand.run(0.5)
    rest, said, setpoints = stand.arm.copy(), len(stand.commands), len(stand.setpoints)
    for undo in (lambda: None, stand.safety.reset):
        undo()
        for _ in range(3):
            stand.offer(RAMP)
            stand.run(0.1)
    assert (len(stand.commands), len(stand.setpoints)) == (said, setpoints)
    assert (stand.arm == rest).all()
    stand.safety.arm(stand.now)
    stand.run(0.1)
    stand.offer(rest[0] + np.arange(8) / 50)
    stand.run(1.0)
    assert stand.arm[0] > rest[0] + 0.05


def test_stopping_an_arm_that_stands_sends_nothing_to_controllers(stand):
    moving(stand)
    stand.run(4.0)
    began = stand.now
    stand.safety.stop('a person')
    stand.run(0.5)
    assert stand.sent(began) == [] and stand.sources(began) == [STOP]


def test_takeover_brakes_then_sends_nothing_and_continues_where_the_arm_is_given_back(stand):
    moving(stand)
    stand.safety.take_over()
    stand.run(1.0)
    assert not stand.executor.has_reference and np.abs(stand.speed).max() < 1e-6
    said, setpoints = len(stand.commands), len(stand.setpoints)
    stand.run(0.5)
    assert (len(stand.commands), len(stand.setpoints)) == (said, setpoints)
    stand.by_hand(2.0, -2.0)
    stand.offer(RAMP)
    stand.run(0.2)
    assert stand.path[-1].tolist() == [2.0, -2.0]
    stand.safety.give_back(stand.now)
    stand.run(0.1)
    assert stand.path[-1].tolist() == [2.0, -2.0]
    stand.offer(np.full(8, 0.0))
    stand.run(0.02)
    speeds, _ = stand.rates()
    assert np.abs(speeds).max() <= 2.0 + 1e-6
    assert stand.rejected == []


def test_stop_during_a_takeover_brakes_and_outlasts_it(stand):
    moving(stand)
    stand.safety.take_over()
    stand.run(0.05)
    place, speed = stand.arm.copy(), stand.speed.copy()
    stand.safety.stop('a person')
    stand.safety.give_back(stand.now)
    stand.offer(RAMP)
    stand.run(0.5)
    assert stand.safety.state == 'stopped'
    assert (stand.arm <= place + speed**2 / 20 + 0.05).all()
    assert np.abs(np.diff(np.array(stand.path)[-50:], axis=0)).max() < 1e-9


def test_stop_brakes_an_arm_that_another_program_moves(stand):
    stand.run(0.1)
    stand.safety.take_over()
    stand.run(0.1)
    stand.move_by_another_program(3.0, seconds=3.0)
    stand.run(0.5)
    place, speed = stand.arm.copy(), stand.speed.copy()
    assert speed[0] > 0.5
    stand.safety.stop('a person')
    stand.run(1.0)
    assert (stand.arm <= place + speed**2 / 20 + 0.05).all()
    assert np.abs(np.diff(np.array(stand.path)[-50:], axis=0)).max() < 1e-9
    assert stand.rejected == []


def test_disarming_leaves_the_motion_of_another_program_alone(stand):
    stand.safety.take_over()
    stand.run(0.1)
    stand.move_by_another_program(1.0, seconds=1.0)
    stand.run(0.3)
    stand.safety.disarm()
    stand.run(1.0)
    np.testing.assert_allclose(stand.arm, 1.0, atol=1e-6)


def test_blocked_arm_is_disarmed_with_both_numbers_and_holds_the_measured_position(stand):
    moving(stand)
    stand.follows = False
    stand.run(1.5)
    assert stand.safety.state == 'disarmed'
    why = stand.safety.idle_reason(stand.now)
    assert 'joint joint_0 does not follow: it is at' in why and 'was sent to' in why
    np.testing.assert_allclose(stand.sent()[-1].points, stand.arm[None])
    np.testing.assert_allclose(stand.path[-1], stand.arm, atol=1e-6)
    sent = len(stand.sent())
    stand.offer(RAMP)
    stand.run(0.5)
    assert len(stand.sent()) == sent


def test_empty_instruction_brakes_and_the_next_one_continues():
    stand = Stand()
    stand.safety.set_instruction('reach')
    stand.run(0.02)
    moving(stand)
    stand.safety.set_instruction('')
    stand.offer(RAMP)
    stand.run(0.5)
    assert not stand.executor.is_moving(stand.now) and stand.safety.state == 'armed'
    assert any('no instruction' in str(why) for why in stand.failures)
    rest = stand.arm.copy()
    stand.safety.set_instruction('push')
    stand.offer(rest[0] + np.arange(8) / 50)
    stand.run(0.5)
    assert stand.arm[0] > rest[0]


def test_leftover_is_not_resumed_while_motion_is_forbidden(stand):
    moving(stand)
    left = stand.loop.leftover()
    stand.safety.stop('a person')
    stand.run(0.5)
    sent = len(stand.sent())
    stand.loop.resume(left, stamp=1)
    stand.run(0.5)
    assert len(stand.sent()) == sent
    assert 'is not resumed: the arm is stopped' in str(stand.failures[-1])


def test_no_period_is_missed_without_an_instruction():
    stand = Stand(missed_chunk_limit=5)
    stand.run(0.02)
    moving(stand)
    stand.safety.set_instruction('')
    stand.run(3.0)
    counters = stand.executor.counters
    missed, stopped = counters.missed, counters.stopped
    stand.run(3.0)
    assert (counters.missed, counters.stopped) == (missed, stopped) and not stopped
    stand.safety.set_instruction('go')
    stand.run(0.35)
    assert STOP not in stand.sources()
    stand.run(0.4)
    assert stand.sources()[-1] == STOP
