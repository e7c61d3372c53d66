"""Wherever the process is suspended, the arm does not jump when it continues.

The process is suspended at any reading of the clock or any measurement of a turn. The controller
executes what it has received before.
"""

import numpy as np
import pytest
from stand import PERIOD, TICK
from test_stop_ends_at_rest_within_the_braking_distance import ACCELERATION, VELOCITY, make

from embodied_kv.control.safety_state_machine import ARMED

RAMP = np.arange(1, 21) / 10  # 1 per s
RESTS = {'trajectory': 1e-3, 'position': 0.03}


class Suspension:
    """Suspends the process of a stand for some seconds at its n-th call that is counted."""

    def __init__(self, stand, number, seconds):
        self.stand, self.number, self.seconds, self.calls = stand, number, seconds, 0
        self.place = self.begun = self.end = None
        loop = stand.loop
        loop._clock = self.before(lambda: stand.now)
        loop._measure = self.before(lambda: stand._measured)

    def before(self, call):
        def counted(*arguments):
            self.calls += 1
            if self.calls == self.number:
                self.suspend()
            return call(*arguments)

        return counted

    def suspend(self):
        stand = self.stand
        self.begun = stand.now
        for _ in range(round(self.seconds / TICK)):
            stand.now += TICK
            stand._control()
        stand._states.clear()
        stand._seen.clear()
        stand._measured = None  # what was received is too old
        self.place, self.end = stand.arm.copy(), len(stand.path)


def act(stand, periods):
    for _ in range(periods):
        stand.offer(stand.arm + RAMP[:, None])
        stand.run(PERIOD)


def suspended(kind, number, seconds, how='act'):
    """An arm that acted, and was suspended; None after its last call."""
    stand = make(kind)
    stand.run(0.3)
    act(stand, 5)
    suspension = Suspension(stand, number, seconds)
    if how == 'stop':
        stand.safety.stop('a person')
    act(stand, 1)
    if suspension.place is None:
        return None
    return stand, suspension


def calls(kind, how):
    stand = make(kind)
    stand.run(0.3)
    act(stand, 5)
    suspension = Suspension(stand, -1, 0)
    if how == 'stop':
        stand.safety.stop('a person')
    act(stand, 1)
    return suspension.calls


@pytest.mark.parametrize('how', ['act', 'stop'])
@pytest.mark.parametrize('kind', ['trajectory', 'position'])
@pytest.mark.parametrize(
    ('seconds', 'step'),
    [(1.5, 9), *(pytest.param(s, 2, marks=pytest.mark.slow) for s in (0.4, 1.5, 6.0))],
)
def test_the_arm_stays_where_it_came_to_rest(kind, seconds, step, how):
    count = calls(kind, how)
    assert count > 20
    for number in [*range(1, 40, 1 + step // 4), *range(40, count + 1, step)]:
        if (found := suspended(kind, number, seconds, how)) is None:
            continue
        stand, suspension = found
        stand.run(2.5)
        moved = np.abs(np.array(stand.path)[suspension.end :] - suspension.place).max()
        # A motion that is under way is braked. Positions are set every 10 ms, at 1 per s.
        allowed = RESTS[kind] if seconds > 1.2 else VELOCITY**2 / (2 * ACCELERATION) + 0.1
        assert moved <= allowed, (number, count, moved, stand.failures)
        assert seconds < 3.0 or stand.safety.state != ARMED, (number, stand.failures)
