"""The plausibility check accepts, refuses and recovers by its rules."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_kv.control.limits import Limits
from embodied_kv.control.plausibility import (
    AGREEMENT,
    MEMORY,
    Bounds,
    JointCheck,
    bounds_of,
)

MS, SECOND = 1_000_000, 1_000_000_000
ARM = Bounds(-3.0, 3.0, 2.0)
TURNS = Bounds(velocity=2.0, continuous=True)


def settled(bounds=ARM, position=1.0, until=SECOND, step=8 * MS):
    """Return a check that has accepted a joint at rest up to the stamp `until`."""
    check = JointCheck(bounds)
    for stamp in range(until % step, until + 1, step):
        check.add(stamp, position)
    assert check.is_known and check.problem() == ''
    return check


def walk(seed, interval, jitter, loss, seconds, top=ARM.velocity):
    """Yield (stamp, position) of a joint within its velocity limit; stamps are off by `jitter`."""
    rng = np.random.default_rng(seed)
    turns = np.sort(rng.uniform(0, seconds, 8))
    speeds = rng.choice([-top, top], 9)
    moments = np.arange(0.0, seconds, interval)
    fine = np.linspace(0.0, seconds, 2_000)
    path = np.cumsum(speeds[np.searchsorted(turns, fine)]) * (fine[1] - fine[0])
    for moment in moments:
        if rng.random() >= loss:
            stamp = moment + rng.uniform(-jitter, jitter)
            yield SECOND + round(stamp * SECOND), float(np.interp(moment, fine, path))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    interval=st.sampled_from([0.001, 0.004, 0.008, 0.0333, 0.1]),
    jitter=st.floats(0.0, 0.024),
    loss=st.sampled_from([0.0, 0.1, 0.5, 0.9]),
)
def test_joint_within_its_velocity_limit_is_never_refused(seed, interval, jitter, loss):
    check = JointCheck(Bounds(-20.0, 20.0, ARM.velocity))
    samples = list(walk(seed, interval, jitter, loss, 1.5))
    known = [check.add(*sample) is not None for sample in samples]
    assert check.refused == 0
    if samples and samples[-1][0] - samples[0][0] > 2 * AGREEMENT:
        assert any(known)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    interval=st.sampled_from([0.001, 0.008, 0.0333]),
    place=st.floats(0.3, 0.95),
    false=st.floats(-19.0, 19.0),
)
def test_single_false_sample_is_refused_and_changes_nothing_else(seed, interval, place, false):
    samples = list(walk(seed, interval, 0.0, 0.0, 1.0))
    plain, disturbed = (JointCheck(Bounds(-20.0, 20.0, ARM.velocity)) for _ in range(2))
    wrong = int(place * len(samples))
    reach = ARM.velocity * (1.5 * interval + 0.05) + 0.02
    for number, (stamp, position) in enumerate(samples):
        if number == wrong and abs(false - samples[number - 1][1]) > 1.01 * reach:
            assert disturbed.add(stamp, false) is None
            assert disturbed.refused == 1 and 'must not move faster' in disturbed.refusal()
            assert disturbed.is_known
        assert disturbed.add(stamp, position) == plain.add(stamp, position)
        assert disturbed.is_known == plain.is_known
    assert plain.is_known


@pytest.mark.parametrize('first', [0.0, -2.9, math.nan, 50.0])
def test_false_first_sample_does_not_lock_out_the_correct_ones(first):
    check = JointCheck(ARM)
    check.add(0, first)
    stamps = range(8 * MS, SECOND, 8 * MS)
    known = [stamp for stamp in stamps if check.add(stamp, 2.0) is not None]
    assert check.is_known and AGREEMENT <= known[0] - stamps[0] <= AGREEMENT + 8 * MS


def test_joint_is_unknown_while_samples_contradict_the_accepted_ones():
    check = settled(position=0.0)
    for number in range(1, 100):
        stamp = SECOND + number * 10 * MS
        accepted = check.add(stamp, 1.5)
        if number == 1:
            assert check.is_known  # A single false sample changes nothing.
        elif accepted is None:
            assert not check.is_known
            assert 'got 0.000 and 1.500' in check.problem()
        if accepted is not None:
            break
    assert number == 26 and check.is_known and check.replaced  # 0.25 s after the first one


@settings(max_examples=25, deadline=None)
@given(
    rates=st.tuples(st.floats(4.5, 1000.0), st.floats(4.5, 1000.0)),
    phase=st.floats(0.0, 0.2),
    gap=st.floats(1.5, 5.0),
)
def test_two_contradicting_publishers_never_give_a_known_joint(rates, phase, gap):
    """Both publish at 4.5 Hz or more, the second one from 0 to 0.2 s after the first one."""
    bounds = Bounds(-9.0, 9.0, 2.0)
    first, second = rates
    sent = [(i / first, 0.0) for i in range(int(first) + 1)]
    sent += [(phase + i / second, gap) for i in range(int(second) + 1)]
    check = JointCheck(bounds)
    for moment, position in sorted(entry for entry in sent if entry[0] <= 0.9):
        check.add(round(moment * SECOND), position)
        assert not check.is_known and check.problem()


@pytest.mark.parametrize('rate', [1, 2, 10, 100])
def test_second_publisher_that_starts_later_makes_the_joint_unknown(rate):
    check, step = settled(), SECOND // rate
    unknown = []
    for stamp in range(SECOND, 8 * SECOND, 8 * MS):
        if stamp % step < 8 * MS:
            check.add(stamp + MS, -1.0)
        check.add(stamp + 2 * MS, 1.0)
        unknown.append(not check.is_known)
    first = unknown.index(True)
    assert all(unknown[first:]) and first * 8 * MS <= 3 * step
    assert '-1.000' in check.problem() and check.is_contradicted


def test_joint_is_known_again_some_seconds_after_the_contradiction_ended():
    check = settled()
    for number in range(20):
        check.add(SECOND + number * 10 * MS, 1.0)
        check.add(SECOND + number * 10 * MS + MS, -1.0)
    assert not check.is_known
    known = []
    for stamp in range(2 * SECOND, 6 * SECOND, 10 * MS):
        check.add(stamp, 1.0)
        known.append(check.is_known)
    assert not known[0] and known[-1] and known.index(True) <= MEMORY // (10 * MS)


def test_two_consistent_publishers_are_accepted():
    check = JointCheck(ARM)
    for number in range(200):
        position = math.sin(number * 0.02)
        for stamp in (number * 10 * MS, number * 10 * MS - 3 * MS):  # one of them is late
            check.add(stamp + SECOND, position)
    assert check.is_known and check.refused == 0


def test_joint_a_little_outside_its_limits_is_usable():
    check = settled(Bounds(-1.0, 1.0, 2.0), position=1.09)
    assert check.is_known
    assert check.add(SECOND + 8 * MS, 1.11) is None
    assert 'must be within [-1, 1] rad (got 1.11)' in check.refusal()


@pytest.mark.parametrize(
    'bounds, position, hint',
    [
        (Bounds(-6.28318, 6.28318, 3.0), -89.95, 'publish degrees: check its unit and sign'),
        (Bounds(0.0, 0.04, 0.1, unit='m'), 35.0, 'publish millimetres'),
        (Bounds(0.0, 1.0, 1.0), -50.0, 'check the unit, sign and zero of its driver'),
    ],
)
def test_position_in_another_unit_is_named(bounds, position, hint):
    check = JointCheck(bounds)
    for number in range(100):
        assert check.add(number * 8 * MS, position) is None
    assert hint in check.problem() and f'(got {position:.4g})' in check.problem()


def test_message_about_degrees_is_complete():
    check = JointCheck(Bounds(-6.28318, 6.28318, 3.0))
    check.add(0, -89.95)
    assert check.problem() == (
        'must be within [-6.28, 6.28] rad (got -89.95); the driver seems to publish degrees: '
        'check its unit and sign'
    )


@pytest.mark.parametrize('wrong', [math.nan, math.inf, -math.inf])
def test_position_that_is_not_finite_is_refused(wrong):
    check = settled()
    for number in (1, 2):
        assert check.add(SECOND + number * MS, wrong) is None
    assert check.problem() == f'must be finite (got {wrong:g}); check its driver'
    assert check.add(SECOND + 3 * MS, 1.0) == 1.0 and check.is_known


def test_false_sample_after_a_pause_is_not_used_before_another_one_confirms_it():
    check = settled()
    check.add(4 * SECOND, -1.5)  # A joint can move that far in three seconds.
    assert not check.is_known
    assert check.add(4 * SECOND + 8 * MS, 1.0) is None and not check.is_known
    slow = settled()
    slow.add(4 * SECOND, -1.5)
    slow.add(4 * SECOND + 8 * MS, -1.5)
    assert slow.is_known


def test_stamps_that_go_back_are_named_and_accepted_after_an_agreement():
    check = settled(until=10 * SECOND)
    for stamp in range(SECOND, 2 * SECOND, 8 * MS):
        if check.add(stamp, -2.0) is not None:
            break
        assert stamp < SECOND + 9 * MS or 'must have stamps that do not go back' in check.problem()
    assert check.is_known and stamp == SECOND + 256 * MS


def test_time_that_is_known_to_be_set_back_forgets_later_samples():
    check = settled(until=10 * SECOND)
    check.drop_after(10 * SECOND)
    assert check.is_known
    check.drop_after(SECOND)
    assert check.problem() == 'is not known until its positions agree for 0.25 s'


def test_joint_without_limits_is_checked_for_finite_positions_only():
    check = JointCheck(Bounds())
    assert [check.add(i * MS, p) for i, p in enumerate((0.0, 1e6, -3.0))] == [0.0, 1e6, -3.0]
    assert check.add(4 * MS, math.nan) is None and check.refused == 1 and check.is_known


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    interval=st.sampled_from([0.002, 0.01, 0.0333]),
    wraps=st.sampled_from([math.pi, 2 * math.pi, None]),
)
def test_continuous_joint_is_unwrapped(seed, interval, wraps):
    """The positions are continuous, and equal the published ones modulo a full turn."""
    check, before = JointCheck(TURNS), None
    for stamp, position in walk(seed, interval, 0.0, 0.0, 3.0):
        position *= 3  # several turns
        stamp = SECOND + 3 * (stamp - SECOND)
        low = {math.pi: -math.pi, 2 * math.pi: 0.0}.get(wraps)
        raw = position if low is None else (position - low) % (2 * math.pi) + low
        accepted = check.add(stamp, raw)
        if accepted is None:
            continue
        assert abs(math.remainder(accepted - raw, 2 * math.pi)) < 1e-9
        if before is not None:
            assert abs(accepted - before) <= TURNS.velocity * 3 * interval + 1e-9
        before = accepted
    assert check.refused == 0 and before is not None


@pytest.mark.parametrize('turns', [True, False])
def test_a_restart_may_keep_the_turns_of_a_continuous_joint(turns):
    check, moment = JointCheck(TURNS), 0
    known = []
    for place in (*np.linspace(3.0, 3.6, 60), *[3.6] * 60):
        moment += 10_000_000
        if len(known) == 60:
            check.restart(turns)
        wrapped = (place + np.pi) % (2 * np.pi) - np.pi
        known.append(check.add(moment, float(wrapped)))
    assert known[59] == pytest.approx(3.6)
    assert known[-1] == pytest.approx(3.6 if turns else 3.6 - 2 * np.pi)


def test_false_sample_of_a_continuous_joint_is_refused():
    check = settled(TURNS, position=3.1)
    assert check.add(SECOND + 8 * MS, -3.1) == pytest.approx(2 * math.pi - 3.1)
    assert check.add(SECOND + 16 * MS, 0.0) is None
    assert check.add(SECOND + 24 * MS, 3.1) == pytest.approx(3.1)


def test_bounds_are_those_of_the_limits():
    limits = Limits(
        ('a', 'b'), [-1.0, -np.inf], [1.0, np.inf], [2.0, 3.0], [1.0, 1.0], ['position'] * 2,
        continuous=[False, True],
    )  # fmt: skip
    bounds = bounds_of(limits, np.array([True, False]))
    assert bounds == {
        'a': Bounds(-1.0, 1.0, 2.0, unit='m'),
        'b': Bounds(velocity=3.0, continuous=True),
    }
