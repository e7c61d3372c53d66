"""The command watchdog forwards valid set-points and sends zeros when a motion must end."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.control.command_watchdog import (
    BETWEEN,
    SECOND,
    ZEROS,
    CommandWatchdog,
    VelocityOutputs,
    VelocitySetpoint,
    timeout,
)
from embodied_kv.robots.embodiment import Embodiment

FRANKA = VelocityOutputs.of(Embodiment.load('franka'))
LIBERO = VelocityOutputs.of(Embodiment.load('libero'))
JOINTS = len(FRANKA.limits)
PERIOD = 0.01  # s
TICK = round(PERIOD * SECOND)
LIMIT = timeout(PERIOD)  # ns
BEGIN = 1000 * SECOND
SENDER = 7
MOVE = (0.5,) + (0.0,) * (JOINTS - 1)
REST = (0.0,) * JOINTS


class Bed:
    """A command watchdog between the suite and controllers that keep their last value."""

    def __init__(self):
        self.now, self.sent = BEGIN, []
        self.watchdog = CommandWatchdog(FRANKA, lambda v: self.sent.append(tuple(v)), self.now)
        self.started = 0
        self.now += TICK

    @property
    def value(self):
        """Return the value that the controllers hold."""
        return self.sent[-1] if self.sent else REST

    def start(self):
        self.started = self.now

    def send(self, values=MOVE, **changes):
        setpoint = VelocitySetpoint(FRANKA.layout, SENDER, self.started, self.now, PERIOD, values)
        return self.watchdog.forward(replace(setpoint, **changes), self.now)

    def move(self, ticks=10):
        self.start()
        for _ in range(ticks):
            assert self.send() == ''
            self.wait(TICK)

    def wait(self, ns, step=TICK // 2):
        """Advance the time; the process checks as often as `CommandWatchdog.wait` requires."""
        end = self.now + ns
        while self.now < end:
            pause = min(self.watchdog.wait(self.now), step / SECOND)
            self.now = min(end, self.now + max(1, math.ceil(pause * SECOND)))
            self.watchdog.check(self.now)


@pytest.fixture
def bed():
    return Bed()


def test_set_points_of_a_motion_reach_the_controllers(bed):
    bed.move(10)
    assert bed.sent == [MOVE] * 10 and bed.watchdog.forwarded == 10


@pytest.mark.parametrize('outputs', [FRANKA, LIBERO], ids=['franka', 'libero'])
def test_values_are_clamped_to_the_limits_of_the_contract(outputs):
    sent = []
    watchdog = CommandWatchdog(outputs, sent.append, BEGIN)
    for sign in (1, -1):
        now = BEGIN + TICK
        values = [sign * 100.0] * len(outputs.limits)
        setpoint = VelocitySetpoint(outputs.layout, SENDER, now, now, PERIOD, values)
        assert watchdog.forward(setpoint, now) == ''
        assert sent[-1] == [sign * limit for limit in outputs.limits]


def test_values_are_split_by_output():
    ((output, values),) = LIBERO.split(range(6))
    assert output.axes[0] == 'twist.linear.x' and list(values) == list(range(6))
    assert FRANKA.layout != LIBERO.layout


def test_missing_set_points_during_a_motion_become_zeros(bed):
    bed.move(10)
    last = bed.now - TICK
    bed.wait(LIMIT - TICK)
    assert bed.value == MOVE
    bed.wait(2)
    assert bed.value == REST and bed.now - last <= LIMIT + 2
    assert bed.watchdog.stops == 1 and 'no set-point for 0.060 s' in bed.watchdog.reason
    bed.wait((ZEROS + 2) * BETWEEN)
    assert bed.sent.count(REST) == ZEROS


def test_missing_set_points_at_rest_are_accepted(bed):
    bed.move(3)
    bed.send(REST)
    count = len(bed.sent)
    bed.wait(10 * SECOND)
    assert len(bed.sent) == count and bed.watchdog.stops == 0
    bed.move(3)
    assert bed.value == MOVE


@pytest.mark.parametrize('rate, seconds', [(500, 0.06), (100, 0.06), (20, 0.125), (1, 2.5)])
def test_the_timeout_follows_the_rate_of_set_points(rate, seconds):
    assert timeout(1 / rate) == round(seconds * SECOND)


BAD = {
    'not a number': dict(values=(math.nan, *MOVE[1:])),
    'infinite': dict(values=(math.inf, *MOVE[1:])),
    'too few': dict(values=MOVE[1:]),
    'too many': dict(values=(*MOVE, 0.0)),
    'of another contract': dict(layout=LIBERO.layout),
    'of another publisher': dict(sender=SENDER + 1),
    'of the future': dict(sent=2 * BEGIN),
    'without a period': dict(period=0.0),
    'of an endless period': dict(period=math.inf),
}


@pytest.mark.parametrize('change', BAD.values(), ids=BAD)
def test_invalid_set_point_ends_the_motion(bed, change):
    bed.move(5)
    assert bed.send(**change)
    assert bed.value == REST and bed.watchdog.refused == 1
    assert bed.send(), 'the motion must not continue'
    assert bed.value == REST


@pytest.mark.parametrize('change', BAD.values(), ids=BAD)
def test_invalid_set_point_at_rest_is_not_forwarded(bed, change):
    bed.start()
    refused = bed.send(**change)
    assert bool(refused) == (not bed.sent)
    assert refused or change == BAD['of another publisher'], 'the first publisher may move the arm'


def test_a_set_point_that_waited_in_a_queue_is_refused(bed):
    bed.move(5)
    bed.wait(SECOND)
    bed.start()
    old = bed.now
    bed.now += LIMIT + 1
    assert 'late' in bed.send(sent=old)
    assert bed.value == REST


def test_a_suspended_suite_does_not_continue_its_motion(bed):
    bed.move(10)
    bed.wait(20 * SECOND)
    for _ in range(10):
        assert 'no set-point' in bed.send()
        bed.wait(TICK)
    assert bed.value == REST
    bed.send(REST)
    assert bed.send(), 'zero ends a motion, but does not start another one'
    bed.move(1)
    assert bed.value == MOVE


def test_a_restarted_watchdog_does_not_continue_a_motion(bed):
    assert bed.send(started=BEGIN - SECOND) == 'the motion started before the watchdog'
    assert bed.sent == []


def test_a_late_watchdog_continues_a_motion_whose_set_points_are_fresh(bed):
    bed.move(5)
    bed.now += 10 * LIMIT  # without a check
    assert bed.send() == '' and bed.watchdog.stops == 0


def test_two_publishers_stop_each_other_and_one_may_start_again(bed):
    bed.move(5)
    assert 'two publishers' in bed.send(sender=SENDER + 1)
    assert bed.value == REST
    bed.wait(TICK)
    bed.move(1)
    assert bed.value == MOVE


def test_ending_watchdog_allows_a_motion_to_complete(bed):
    bed.move(5)
    bed.watchdog.end(bed.now)
    assert not bed.watchdog.is_finished
    bed.send((0.2, *MOVE[1:]))
    bed.send(REST)
    assert bed.watchdog.is_finished and bed.watchdog.stops == 0
    bed.start()
    assert bed.send() == 'the watchdog shuts down' and bed.value == REST


def test_ending_watchdog_ends_a_long_motion(bed):
    bed.move(5)
    bed.watchdog.end(bed.now, 0.5)
    for _ in range(100):
        bed.send()
        bed.wait(TICK)
    assert bed.value == REST and bed.watchdog.stops == 1
    bed.wait(ZEROS * BETWEEN)
    assert bed.watchdog.is_finished and bed.sent.count(REST) >= ZEROS


def test_ending_watchdog_finishes_at_once_at_rest(bed):
    bed.watchdog.end(bed.now)
    assert bed.watchdog.is_finished and bed.sent == []


numbers = st.floats(-10, 10) | st.sampled_from([0.0, math.nan, math.inf, -math.inf])
messages = st.fixed_dictionaries(
    {'values': st.lists(numbers, min_size=JOINTS, max_size=JOINTS) | st.just(MOVE)},
    optional={
        'sender': st.integers(SENDER, SENDER + 1),
        'layout': st.sampled_from([FRANKA.layout, 0]),
        'period': st.sampled_from([PERIOD, 0.1, math.nan]),
    },
)
events = st.tuples(
    st.integers(0, 3 * LIMIT),  # ns before this event
    st.booleans(),  # whether the process checks
    st.booleans(),  # whether a new motion starts
    st.integers(-TICK, 2 * LIMIT),  # age of the set-point, ns
    st.none() | messages,
)


@given(st.lists(events, max_size=60))
def test_controllers_receive_bounded_values_and_no_motion_outlives_its_set_points(steps):
    bed = Bed()
    last = None  # stamp of the newest accepted set-point, and its timeout
    for passed, checks, starts, age, change in steps:
        bed.now += passed
        if checks:
            bed.watchdog.check(bed.now)
            if last is not None and bed.now - last[0] > last[1]:
                assert not any(bed.value)
        if starts:
            bed.start()
        if change is None:
            continue
        stopped, before = bed.watchdog.stopped, bed.value
        sent = bed.now - age
        if bed.send(sent=sent, **change) == '':
            last = sent, timeout(change.get('period', PERIOD))
            assert not any(bed.value) or bed.started > stopped
        else:
            assert bed.value == before or not any(bed.value)
        assert all(abs(v) <= m for v, m in zip(bed.value, FRANKA.limits, strict=True))
