"""Messages that name some joints each are merged to one state.

Times are in ms for readability.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_kv.nodes.observation.joint_merger import (
    HISTORY,
    SOURCES,
    JointInput,
    JointMerger,
    UnknownStateError,
)

MS = 1_000_000
ARM, GRIPPER = ('shoulder', 'elbow'), ('finger',)


@pytest.fixture
def merger():
    return JointMerger([JointInput('arm', ARM), JointInput('hand', GRIPPER)], max_age=0.1)


def test_an_arm_and_a_gripper_apart_are_one_state(merger):
    merger.add('arm', 100 * MS, ['elbow', 'wheel', 'shoulder'], [2.0, 9.0, 1.0], [0.2, 9.0, 0.1])
    merger.add('hand', 60 * MS, ['finger'], [3.0])
    state = merger.at(100 * MS)
    np.testing.assert_array_equal(state.positions, [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(state.velocities, [0.1, 0.2, np.nan])
    assert state.stamp == 60 * MS


def test_each_joint_is_as_it_was_said_nearest_to_the_moment(merger):
    for stamp in range(0, 200, 2):
        merger.add('arm', stamp * MS, ARM, [stamp, stamp])
    for stamp in (40, 90):
        merger.add('hand', stamp * MS, GRIPPER, [stamp])
    np.testing.assert_array_equal(merger.at(101 * MS - 1).positions, [100, 100, 90])
    np.testing.assert_array_equal(merger.at(60 * MS).positions, [60, 60, 40])


def test_several_publishers_of_one_topic_fill_each_other_up(merger):
    merger.add('hand', 100 * MS, GRIPPER, [3.0])
    merger.add('arm', 100 * MS, ['shoulder'], [1.0])
    with pytest.raises(UnknownStateError) as unknown:
        merger.at(100 * MS)
    assert unknown.value.args[0] == (
        'joint elbow must be published on arm (got shoulder); check the names in the contract '
        'and in its driver'
    )
    merger.add('arm', 101 * MS, ['elbow'], [2.0])
    np.testing.assert_array_equal(merger.at(100 * MS).positions, [1.0, 2.0, 3.0])


def test_a_joint_that_is_too_old_is_none(merger):
    merger.add('arm', 200 * MS, ARM, [1.0, 2.0])
    merger.add('hand', 99 * MS, GRIPPER, [3.0])
    assert merger.at(199 * MS).stamp == 99 * MS
    with pytest.raises(UnknownStateError) as unknown:
        merger.at(200 * MS)
    assert unknown.value.args[0] == (
        'joint finger must have a sample within max_joint_state_skew 100 ms (got 101 ms before '
        'the requested time on hand); its driver is slow or silent, or its clock is wrong'
    )


def test_before_any_message_nothing_is_known(merger):
    with pytest.raises(UnknownStateError, match='no joint state received on arm, hand'):
        merger.at(0)


def test_a_topic_gives_the_joints_that_are_taken_from_it(merger):
    merger.add('hand', 100 * MS, ['finger', 'elbow'], [3.0, 9.0])
    merger.add('arm', 100 * MS, ARM, [1.0, 2.0])
    np.testing.assert_array_equal(merger.at(100 * MS).positions, [1.0, 2.0, 3.0])


@pytest.mark.parametrize('wrong', [np.nan, np.inf, -np.inf])
def test_position_that_is_not_finite_invalidates_only_its_joint(merger, wrong):
    merger.add('hand', 100 * MS, GRIPPER, [3.0])
    merger.add('arm', 100 * MS, ARM, [1.0, 2.0])
    with pytest.raises(ValueError, match=f'^joint elbow must be finite .got {wrong:g}.'):
        merger.add('arm', 110 * MS, ARM, [5.0, wrong])
    np.testing.assert_array_equal(merger.at(110 * MS).positions, [5.0, 2.0, 3.0])
    with pytest.raises(ValueError, match='^joint elbow must be finite'):
        merger.add('arm', 120 * MS, ARM, [6.0, wrong])
    with pytest.raises(UnknownStateError, match=f'^joint elbow must be finite .got {wrong:g}.'):
        merger.at(120 * MS)
    np.testing.assert_array_equal(merger.known(120 * MS).positions, [6.0, np.nan, 3.0])


def test_what_nobody_asked_for_may_be_anything(merger):
    merger.add('arm', 100 * MS, ['wheel', *ARM], [np.nan, 1.0, 2.0])
    merger.add('arm', 100 * MS, ['wheel'], [])
    merger.add('hand', 100 * MS, GRIPPER, [3.0])
    np.testing.assert_array_equal(merger.at(100 * MS).positions, [1.0, 2.0, 3.0])


def test_a_message_without_positions_is_refused(merger):
    with pytest.raises(
        ValueError, match=r'one position for each name \(got 0 for 2 names on arm\)'
    ):
        merger.add('arm', 100 * MS, ARM, [], [1.0, 1.0])
    assert merger.problem(100 * MS).startswith('joint shoulder must have one position for each')


def test_time_that_is_set_back_drops_what_was_said_of_later(merger):
    for stamp in (5000, 10):
        merger.add('arm', stamp * MS, ARM, [stamp, stamp])
    merger.add('hand', 5000 * MS, GRIPPER, [3.0])
    merger.drop_after(20 * MS)
    merger.add('hand', 12 * MS, GRIPPER, [4.0])
    np.testing.assert_array_equal(merger.at(12 * MS).positions, [10, 10, 4])
    with pytest.raises(UnknownStateError):
        merger.at(5000 * MS)


@pytest.mark.parametrize(
    'now, stamp, awaited',
    [
        (50, 45, True),  # the message of 50 has been sent and is nearest
        (49, 45, False),  # the next message has not been sent yet
        (50, 42, False),  # 40 is nearer
        (69, 45, True),
        (70, 45, False),  # the next message is overdue, so it is lost
        (50, 39, False),  # a later message has arrived already
    ],
)
def test_a_message_that_is_about_to_arrive_is_expected(merger, now, stamp, awaited):
    for moment in (10, 20, 30, 40):
        merger.add('arm', moment * MS, ARM, [0.0, 0.0])
    assert merger.expects(stamp * MS + 1, now * MS) == awaited


def test_memory_is_bounded(merger):
    for stamp in range(3 * HISTORY):
        merger.add('arm', stamp, ARM, [0.0, 0.0])
        merger.add('arm', stamp, [f'joint {stamp}'], [0.0])
    assert len(merger._sources) <= SOURCES
    assert max(len(joint.samples) for joint in merger._joints) == HISTORY
    merger.add('hand', 3 * HISTORY, GRIPPER, [0.0])
    merger.at(3 * HISTORY)  # an active publisher is not dropped


messages = st.tuples(st.integers(0, 300), st.sets(st.sampled_from(ARM), min_size=1))


@settings(max_examples=100, deadline=None)
@given(st.lists(messages, max_size=30), st.integers(0, 300))
def test_a_state_is_the_nearest_of_each_joint_or_none(said, moment):
    said = sorted(said, key=lambda message: message[0])
    merger = JointMerger([JointInput('arm', ARM)], max_age=0.05)
    for stamp, names in said:
        merger.add('arm', stamp * MS, sorted(names), [float(stamp)] * len(names))
    away = [
        min((abs(stamp - moment) for stamp, names in said if name in names), default=np.inf)
        for name in ARM
    ]
    if max(away) > 50:
        with pytest.raises(UnknownStateError):
            merger.at(moment * MS)
    else:
        np.testing.assert_array_equal(np.abs(merger.at(moment * MS).positions - moment), away)
