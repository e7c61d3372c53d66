"""Wherever the process is suspended, the arm does not jump when it continues.

The process is suspended at any reading of the clock or any measurement of a turn, once or twice.
The controller executes what it has received before.
"""

import numpy as np
import pytest
from stand import PERIOD, TICK
from test_stop_ends_at_rest_within_the_braking_distance import ACCELERATION, VELOCITY, make

from embodied_kv.control.safety_state_machine import ARMED, STOPPED

RAMP = np.arange(1, 21) / 10  # 1 per s
# Allowed motion after a rest. A position set-point covers 10 ms of a motion at 1 per s; a
# velocity lasts until zero is sent.
RESTS = {'trajectory': 1e-3, 'position': 0.03, 'mixed': 0.03}
BRAKING = VELOCITY**2 / (2 * ACCELERATION) + 0.1
# A sent trajectory continues while the process is suspended between two turns. After that, the
# motion at 1 per s continues until 5 chunks are missed.
CONTINUES = 0.5 + BRAKING
NEVER = -1
SLOW = pytest.mark.slow


class Suspension:
    """Suspends the process of a stand for some seconds at the calls with these numbers.

    Readings of the clock and measurements are counted as calls. place: position of the arm after
    the first suspension. end: length of its path at that time.
    """

    def __init__(self, stand, numbers, seconds):
        self.stand, self.numbers, self.seconds, self.calls = stand, numbers, seconds, 0
        self.place = self.end = None
        stand.loop._clock = self.before(lambda: stand.now)
        stand.loop._measure = self.before(lambda: stand._measured)

    def before(self, call):
        def counted():
            self.calls += 1
            if self.calls in self.numbers:
                self.suspend()
            return call()

        return counted

    def suspend(self):
        stand = self.stand
        for _ in range(round(self.seconds / TICK)):
            stand.now += TICK
            stand._control()
        stand._states.clear()
        stand._seen.clear()
        stand._measured = None  # the received joint state is too old
        if self.place is None:
            self.place, self.end = stand.arm.copy(), len(stand.path)


def act(stand, periods):
    for _ in range(periods):
        stand.offer(stand.arm + RAMP[:, None])
        stand.run(PERIOD)


def suspended(kind, how, numbers, seconds):
    """Return a stand and its suspension in the turns after `how`."""
    stand = make(kind)
    stand.run(0.3)
    if how != 'first':
        act(stand, 5)
    suspension = Suspension(stand, numbers, seconds)
    if how == 'stop':
        stand.safety.stop('a person')
    if how == 'hold':
        stand.run(0.9 * PERIOD)
        stand.loop.hold()
        stand.run(PERIOD)
    else:
        act(stand, 1)
    return stand, suspension


def check(kind, how, seconds, step, gap=0):
    calls = suspended(kind, how, (NEVER,), seconds)[1].calls
    assert calls > 20
    for number in [*range(1, 40, 1 + step // 4), *range(40, calls + 1, step)]:
        stand, suspension = suspended(kind, how, (number, number + gap), seconds)
        if suspension.place is None:
            continue
        stand.run(2.5)
        path = np.array(stand.path)[suspension.end :]
        moved = np.abs(path - suspension.place).max()
        is_at_rest = seconds > 1.2 and kind in RESTS
        allowed = RESTS[kind] if is_at_rest else BRAKING
        if kind == 'trajectory':
            assert np.abs(np.diff(path, axis=0)).max() <= 1.05 * VELOCITY * TICK, number
            if not (is_at_rest or stand.failures):
                allowed = CONTINUES
        assert moved <= allowed, (number, calls, moved, stand.failures)
        if how != 'first':  # else no motion was interrupted
            assert seconds < 3.0 or stand.safety.state != ARMED, (number, stand.failures)


@pytest.mark.parametrize('how', ['act', 'stop', 'first', 'hold'])
@pytest.mark.parametrize('kind', ['trajectory', 'position', 'mixed'])
@pytest.mark.parametrize(
    ('seconds', 'step'), [(1.5, 15), *(pytest.param(s, 2, marks=SLOW) for s in (0.4, 1.5, 6.0))]
)
def test_the_arm_stays_where_it_came_to_rest(kind, seconds, step, how):
    check(kind, how, seconds, step)


@pytest.mark.parametrize('how', ['act', 'stop', 'hold'])
@pytest.mark.parametrize('gap', [2, pytest.param(7, marks=SLOW)])
def test_a_second_suspension_in_the_turn_moves_nothing_either(gap, how):
    check('trajectory', how, 1.5, 15, gap)


@pytest.mark.parametrize('how', ['first', 'stop'])
def test_velocities_end(how):
    check('velocity', how, 0.4, 15)


@pytest.mark.parametrize('number', range(2, 20, 3))
def test_a_stop_brakes_another_program_after_a_suspension(number):
    stand = make('trajectory')
    stand.run(0.3)
    act(stand, 2)
    stand.safety.take_over()
    stand.run(1.0)
    stand.move_by_another_program(stand.arm[0] + 3.0, seconds=3.0)
    stand.run(0.5)
    suspension = Suspension(stand, (number,), 0.4)
    stand.safety.stop('a person')
    stand.run(2.5)
    assert suspension.place is not None and stand.safety.state == STOPPED
    moved = np.abs(np.array(stand.path)[suspension.end :] - suspension.place).max()
    assert moved <= BRAKING


@pytest.mark.parametrize('number', range(1, 20, 3))
def test_another_program_is_left_alone(number):
    stand = make('trajectory', armed=False)
    stand.run(0.3)
    stand.move_by_another_program(stand.arm[0] + 3.0, seconds=3.0)
    stand.run(0.5)
    suspension = Suspension(stand, (number,), 0.4)
    stand.loop.refuse('a chunk')
    stand.run(1.0)
    assert suspension.place is not None
    assert not stand.sent()


@pytest.mark.parametrize('seconds', [0.3, 0.45])
@pytest.mark.parametrize('lag', [0.0, 0.06])
def test_joints_that_held_their_set_point_follow(seconds, lag):
    """An arm with both controller types, late joint states and late servos stays armed."""
    stand = make('mixed', state_delay=0.01, lag=lag)
    stand.run(0.3)
    act(stand, 5)
    for _ in range(round(seconds / TICK)):  # suspended between two turns; joint states follow
        stand.now += TICK
        stand._states.append((stand.now, stand.arm.copy()))
        stand._control()
    stand.run(0.5)
    assert stand.safety.state == ARMED, stand.failures
