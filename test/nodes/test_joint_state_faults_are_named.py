"""Each fault of a joint state has a message that names the joint, the cause and the remedy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_kv.control.plausibility import Bounds
from embodied_kv.nodes.observation.joint_merger import (
    EPOCH,
    JointInput,
    JointMerger,
    UnknownStateError,
)

MS, SECOND = 1_000_000, 1_000_000_000
NAMES = ['hip', 'knee']
BOUNDS = {name: Bounds(-3.0, 3.0, 2.0) for name in NAMES}


def merger(bounds=BOUNDS, publishers=()):
    inputs = [JointInput('joint_states', tuple(NAMES))]
    return JointMerger(inputs, 0.2, bounds, lambda topic: publishers)


def feed(made, until=SECOND, begin=0, positions=(1.0, -1.0), offset=0, names=NAMES, step=10):
    """Add messages that arrive every `step` ms; their clock is `offset` ns ahead."""
    for moment in range(begin, until + 1, step * MS):
        try:
            made.add('joint_states', moment + offset, names, positions, (), moment)
        except ValueError:
            pass
    return made


def test_joint_is_known_after_a_quarter_of_a_second():
    made = merger()
    assert made.problem(0) == 'no joint state received on joint_states'
    feed(made, 240 * MS)
    assert made.problem(240 * MS) == (
        'joint hip is not known until its positions agree for 0.25 s (also unknown: knee)'
    )
    feed(made, 250 * MS, 250 * MS)
    np.testing.assert_array_equal(made.at(250 * MS).positions, [1.0, -1.0])


def test_single_message_of_zeros_is_refused_and_changes_nothing():
    made = feed(merger())
    with pytest.raises(
        ValueError, match='^joint hip must not move faster than 2 rad/s .got 1.000'
    ):
        made.add('joint_states', SECOND + 5 * MS, NAMES, [0.0, 0.0])
    assert made.problem(SECOND + 5 * MS) == ''
    np.testing.assert_array_equal(made.at(SECOND + 5 * MS).positions, [1.0, -1.0])
    np.testing.assert_array_equal(made.rates(SECOND + 5 * MS, 200 * MS), [0.0, 0.0])


def contradicted(publishers):
    made = feed(merger(publishers=publishers))
    for moment in range(SECOND, 2 * SECOND, 10 * MS):
        feed(made, moment, moment)
        feed(made, moment + 3 * MS, moment + 3 * MS, (0.0, -1.0))
    return made.problem(2 * SECOND)


def test_contradicting_publishers_are_named():
    assert contradicted(['/driver', '/joint_state_publisher']) == (
        'joint hip must not move faster than 2 rad/s (got 1.000 and 0.000 3 ms apart); publishers '
        'of joint_states: /driver, /joint_state_publisher; only one may publish this joint'
    )
    assert '/robot (2 times); only one' in contradicted(['/robot', '/robot'])


def test_driver_that_contradicts_itself_is_named():
    assert contradicted(['/driver']).endswith(
        '3 ms apart); check the driver that publishes joint_states (/driver)'
    )


@settings(max_examples=20, deadline=None)
@given(order=st.booleans(), every=st.sampled_from([10, 50, 200]), seed=st.integers(0, 100))
def test_contradicting_publishers_with_other_names_or_rates_are_never_known(order, every, seed):
    made, rng = merger(), np.random.default_rng(seed)
    for moment in range(0, 1000, 10):
        feed(made, moment * MS, moment * MS)
        if moment % every == 0:
            zeros = moment + int(rng.integers(1, 9))
            names = NAMES[::-1] if order else ['wheel', *NAMES]
            feed(made, zeros * MS, zeros * MS, [0.0] * len(names), names=names)
        if moment % 50 == 0:
            with pytest.raises(UnknownStateError):
                made.at(moment * MS)


def test_joint_states_in_degrees_are_named():
    made = feed(merger(), positions=(-89.95, 0.5))
    assert made.problem(SECOND) == (
        'joint hip must be within [-3, 3] rad (got -89.95); the driver seems to publish degrees: '
        'check its unit and sign'
    )


def test_name_that_occurs_twice_is_named():
    with pytest.raises(ValueError, match='named twice on joint_states'):
        merger().add('joint_states', 0, [*NAMES, 'hip'], [1.0, 1.0, 2.0])
    made = feed(merger(), names=[*NAMES, 'hip'], positions=(1.0, -1.0, 9.0))
    assert made.problem(SECOND) == (
        'joint hip must be named once in a message (named twice on joint_states)'
    )
    np.testing.assert_array_equal(made.known(SECOND).positions, [np.nan, -1.0])


@pytest.mark.parametrize(
    'offset, told',
    [
        (5 * SECOND, 'got 5.00 s ahead of the clock of this node on joint_states'),
        (-5 * SECOND, 'got 5.00 s behind the clock of this node on joint_states'),
        (5 * SECOND, 'synchronize the clock of its driver'),
        (-12 * EPOCH, 'set use_sim_time alike for all nodes'),
        (12 * EPOCH, 'set use_sim_time alike for all nodes'),
    ],
)
def test_clock_of_a_driver_is_named(offset, told):
    assert told in feed(merger(), offset=offset).problem(SECOND)


def test_stamps_that_stand_still_are_named():
    made = merger()
    for number in range(50):
        made.add('joint_states', SECOND, NAMES, [number * 1e-3] * 2, (), SECOND + number * MS)
    assert made.problem(SECOND) == (
        'joint hip must have stamps that increase (got 50 messages stamped 1.000 s on '
        'joint_states); check the clock of its driver (also unknown: knee)'
    )


def test_repeated_stamps_are_forgotten_when_time_is_set_back_before_them():
    made = merger()
    for number in range(50):
        made.add('joint_states', SECOND, NAMES, [number * 1e-3] * 2, (), SECOND + number * MS)
    made.drop_after(0)
    assert made.problem(0).startswith('joint hip ')
    assert 'stamps that increase' not in made.problem(0)


def test_driver_that_became_silent_is_named():
    assert feed(merger()).problem(2 * SECOND) == (
        'joint hip must have a sample within max_joint_state_skew 200 ms (got 1000 ms before the '
        'requested time on joint_states); its driver is slow or silent (also unknown: knee)'
    )


def test_joint_that_no_driver_publishes_is_named():
    made = feed(merger(), names=['hip', 'elbow'])
    assert made.problem(SECOND) == (
        'joint knee must be published on joint_states (got hip, elbow); check the names in the '
        'contract and in its driver'
    )


def test_reason_of_a_refused_joint_comes_before_that_of_an_absent_one():
    inputs = [JointInput('hand', ('finger',)), JointInput('joint_states', tuple(NAMES))]
    made = feed(JointMerger(inputs, 0.2, BOUNDS), positions=(np.nan, 1.0))
    assert made.problem(SECOND) == (
        'joint hip must be finite (got nan); check its driver (also unknown: finger)'
    )


def test_continuous_joint_is_merged_unwrapped():
    made = merger({'hip': Bounds(velocity=2.0, continuous=True)})
    for moment in range(0, 6000, 10):
        angle = moment * 1e-3  # passes pi, where the driver wraps
        wrapped = (angle + np.pi) % (2 * np.pi) - np.pi
        made.add('joint_states', moment * MS, NAMES, [wrapped, 0.0])
        if moment > 300:
            np.testing.assert_allclose(made.at(moment * MS).positions[0], angle, atol=1e-9)
    np.testing.assert_allclose(made.rates(moment * MS, 200 * MS)[0], 1.0)
    made.wrap()
    np.testing.assert_allclose(made.at(moment * MS).positions[0], angle - 2 * np.pi, atol=1e-9)


def test_position_of_a_driver_whose_clock_is_ahead_is_not_older_than_stated():
    made = merger()
    made.clips = True
    for moment in range(0, SECOND + 1, 10 * MS):  # 1 rad/s
        at = moment * 1e-9
        made.add('joint_states', moment + 150 * MS, NAMES, (at, -at), (), moment)
    sample = made.known(SECOND)
    np.testing.assert_allclose(sample.positions, [1.0, -1.0], atol=0.011)
    assert abs(sample.stamp - SECOND) <= 10 * MS
