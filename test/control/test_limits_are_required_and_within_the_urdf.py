"""Limits have no defaults; impossible ones, and ones wider than the robot's, are refused."""

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
        (dict(lower=[-1, 1]), 'joint elbow: lower is 1 and upper 1: write a lower limit'),
        (dict(velocity=[2, 0]), 'joint elbow: velocity limit is 0: write a finite number above 0'),
        (dict(velocity=[math.inf, 2]), 'joint shoulder: velocity limit is inf: write a finite'),
        (dict(acceleration=[-5, 5]), 'joint shoulder: acceleration limit is -5: write'),
        (dict(acceleration=[5]), r'acceleration: write one number for each of shoulder, elbow'),
        (dict(upper=[1, math.nan]), 'joint elbow: upper is not a number'),
        (dict(upper=[1, None]), 'joint elbow: upper is not a number'),
        (dict(kinds=['position', 'effort']), "joint elbow: kind is 'effort': write position or"),
        (dict(kinds=['position']), 'kinds: write one for each of shoulder, elbow'),
        (dict(joints=['elbow', 'elbow']), 'each named once'),
    ],
)
def test_what_cannot_be_names_the_joint_and_what_to_write(changed, said):
    with pytest.raises(LimitError, match=said):
        of(**changed)


def test_they_are_nobodys_to_change():
    with pytest.raises(ValueError):
        limits().upper[0] = 100.0


def test_actions_are_clipped_by_their_kind():
    lim = limits(lower=-1, upper=1, velocity=3, kinds=['position', 'velocity'])
    assert lim.clip([[-5.0, -5.0], [0.5, 2.0]]).tolist() == [[-1.0, -3.0], [0.5, 2.0]]


def test_what_the_contract_leaves_open_comes_from_the_urdf():
    lim = Limits.from_urdf(
        URDF, ['shoulder', 'wheel'], ['position'] * 2, [5, 5], lower=[-1, None], velocity=None
    )
    assert lim.lower.tolist() == [-1, -math.inf] and lim.upper.tolist() == [1.5, math.inf]
    assert lim.velocity.tolist() == [3, 6]


@pytest.mark.parametrize(
    'changed, said',
    [
        (dict(upper=[1.6, 9]), 'joint shoulder: upper limit is 1.6, the robot_description says 1'),
        (dict(lower=[-2.1, -9]), 'joint shoulder: lower limit is -2.1, the robot_description say'),
        (dict(velocity=[1, 7]), 'joint wheel: velocity limit is 7, the robot_description says 6'),
        (dict(joints=['shoulder', 'glued']), 'joint glued is no movable joint .* shoulder, wheel'),
    ],
)
def test_wider_than_the_urdf_is_refused_with_both_numbers(changed, said):
    lim = of(**dict(joints=['shoulder', 'wheel'], upper=[1.5, 9]) | changed)
    with pytest.raises(LimitError, match=said):
        lim.check_against(URDF)


def test_an_axis_without_positions_need_be_no_joint():
    lim = Limits(['x'], [-math.inf], [math.inf], [0.2], [1.0], ['velocity'])
    lim.check_against(URDF)


@pytest.mark.parametrize(
    'text, said',
    [
        ('<robot', 'robot_description is no XML'),
        ('<sdf/>', 'is no URDF: it begins with <sdf>'),
        (URDF.replace(' velocity="6.0"', ''), 'joint wheel: nobody says its velocity limit'),
        (URDF.replace('"6.0"', '"fast"'), "joint wheel: .* velocity limit is 'fast', no number"),
    ],
)
def test_a_urdf_that_does_not_say_is_refused(text, said):
    with pytest.raises(LimitError, match=said):
        Limits.from_urdf(text, ['wheel'], ['position'], [5])
