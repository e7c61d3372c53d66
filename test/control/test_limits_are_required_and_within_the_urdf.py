"""Limits have no defaults. Impossible limits and limits wider than the URDF are refused."""

import math

import pytest
from control_cases import limits

from embodied_kv.control.limits import LimitError, Limits

URDF = """<?xml version="1.0"?>
<robot name="two">
  <link name="base"/><link name="a"/><link name="b"/><link name="c"/>
  <joint name="shoulder" type="revolute">
    <parent link="base"/><child link="a"/>
    <limit lower="-2.0" upper="1.5" velocity="3.0" effort="50"/>
  </joint>
  <joint name="wheel" type="continuous">
    <parent link="a"/><child link="b"/><limit velocity="6.0" effort="5"/>
  </joint>
  <joint name="glued" type="fixed"><parent link="b"/><child link="c"/></joint>
</robot>"""


def of(**changed):
    fields = dict(
        joints=['shoulder', 'elbow'],
        lower=[-1, -1],
        upper=[1, 1],
        velocity=[2, 2],
        acceleration=[5, 5],
        kinds=['position', 'position'],
    )
    return Limits(**fields | changed)


@pytest.mark.parametrize(
    'changed, said',
    [
        (dict(lower=[-1, 1]), r'joint elbow: lower must be < upper \(got lower 1 and upper 1'),
        (dict(velocity=[2, 0]), r'joint elbow: velocity limit must be finite and > 0 \(got 0'),
        (dict(velocity=[math.inf, 2]), r'joint shoulder: velocity limit must be .* \(got inf'),
        (dict(acceleration=[-5, 5]), r'joint shoulder: acceleration limit must be .* \(got -5'),
        (dict(acceleration=[5]), 'acceleration must have one number for each of shoulder, elbow'),
        (dict(upper=[1, math.nan]), 'joint elbow: upper must be a number'),
        (dict(upper=[1, None]), 'joint elbow: upper must be a number'),
        (dict(kinds=['position', 'effort']), 'joint elbow: kind must be position or velocity'),
        (dict(kinds=['position']), 'kinds must have one entry for each of shoulder, elbow'),
        (dict(joints=['elbow', 'elbow']), 'each once'),
        (dict(continuous=[True]), 'continuous must be true or false for each of shoulder, elbow'),
        (dict(continuous=[1, 0]), 'continuous must be true or false for each of shoulder, elbow'),
    ],
)
def test_impossible_limits_are_refused_with_joint_and_rule(changed, said):
    with pytest.raises(LimitError, match=said):
        of(**changed)


def test_arrays_of_limits_are_read_only():
    with pytest.raises(ValueError):
        limits().upper[0] = 100.0
    with pytest.raises(ValueError):
        limits().continuous[0] = True


def test_no_joint_is_continuous_by_default():
    assert limits().continuous.tolist() == [False, False]


def test_actions_are_clipped_by_their_kind():
    lim = limits(lower=-1, upper=1, velocity=3, kinds=['position', 'velocity'])
    assert lim.clip([[-5.0, -5.0], [0.5, 2.0]]).tolist() == [[-1.0, -3.0], [0.5, 2.0]]


def test_urdf_gives_what_the_contract_leaves_open():
    lim = Limits.from_urdf(
        URDF, ['shoulder', 'wheel'], ['position'] * 2, [5, 5], lower=[-1, None], velocity=None
    )
    assert lim.lower.tolist() == [-1, -math.inf] and lim.upper.tolist() == [1.5, math.inf]
    assert lim.velocity.tolist() == [3, 6] and lim.continuous.tolist() == [False, True]


def test_bounded_continuous_joint_of_the_urdf_stays_continuous():
    lim = Limits.from_urdf(URDF, ['wheel'], ['position'], [5], lower=[-9], upper=[9])
    assert (lim.lower, lim.upper, lim.continuous) == ([-9], [9], [True])


@pytest.mark.parametrize(
    'changed, said',
    [
        (dict(upper=[1.6, 9]), r'joint shoulder: upper limit must be within 1.5, .* \(got 1.6'),
        (dict(lower=[-2.1, -9]), r'joint shoulder: lower limit must be within -2, .* \(got -2.1'),
        (dict(velocity=[1, 7]), r'joint wheel: velocity limit must be within 6, .* \(got 7'),
        (dict(joints=['shoulder', 'glued']), 'glued must be a movable .* has: shoulder, wheel'),
        (dict(continuous=[True, True]), 'joint shoulder: continuous must be false, .* revolute'),
    ],
)
def test_limits_that_contradict_the_urdf_are_refused_with_both_numbers(changed, said):
    lim = of(**dict(joints=['shoulder', 'wheel'], upper=[1.5, 9]) | changed)
    with pytest.raises(LimitError, match=said):
        lim.check_against(URDF)


def test_axis_without_positions_need_not_be_a_joint():
    lim = Limits(['x'], [-math.inf], [math.inf], [0.2], [1.0], ['velocity'])
    lim.check_against(URDF)


def test_continuous_joint_by_velocity_is_a_joint_that_is_measured():
    endless = dict(lower=[-math.inf], upper=[math.inf], velocity=[0.2], acceleration=[1.0])
    lim = Limits(['x'], **endless, kinds=['velocity'], continuous=[True])
    assert not lim.unbounded.any()
    with pytest.raises(LimitError, match='joint x must be a movable joint'):
        lim.check_against(URDF)


@pytest.mark.parametrize(
    'text, said',
    [
        ('<robot', 'robot_description must be XML'),
        ('<sdf/>', r'must be a URDF \(got the element <sdf>'),
        (URDF.replace(' velocity="6.0"', ''), 'joint wheel: velocity limit is missing'),
        (URDF.replace('"6.0"', '"fast"'), r"wheel: velocity .* must be a number \(got 'fast'"),
        (URDF.replace('"6.0"', '"nan"'), r'wheel: velocity .* must be a number \(got NaN'),
    ],
)
def test_urdf_without_the_limit_is_refused(text, said):
    with pytest.raises(LimitError, match=said):
        Limits.from_urdf(text, ['wheel'], ['position'], [5])
