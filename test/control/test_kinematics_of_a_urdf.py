"""Poses of a link equal trigonometry and MuJoCo; its chain lists the joints that move it."""

from xml.etree import ElementTree

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from embodied_kv.control.kinematics import Kinematics, chain, links

UPPER, LOWER = 0.5, 0.3  # m
ANGLES = arrays(float, (4, 2), elements=st.floats(-np.pi, np.pi))


def joint(name, parent, child, x, kind='revolute', axis='0 0 1'):
    return (
        f'<link name="{child}"/><joint name="{name}" type="{kind}"><parent link="{parent}"/>'
        f'<child link="{child}"/><origin xyz="{x} 0 0"/><axis xyz="{axis}"/>'
        '<limit lower="-4" upper="4" velocity="1" effort="1"/></joint>'
    )


ARM = (
    '<robot name="planar"><link name="base"/>'
    + joint('shoulder', 'base', 'upper', 0)
    + joint('elbow', 'upper', 'lower', UPPER)
    + joint('flange', 'lower', 'tip', LOWER, 'fixed')
    + joint('finger', 'tip', 'jaw', 0, 'prismatic')
    + '</robot>'
)
TWO = Kinematics(ARM, 'tip', ['shoulder', 'elbow'])


@given(ANGLES)
def test_places_equal_those_of_a_two_link_arm(angles):
    shoulder, both = angles[:, 0], angles.sum(axis=1)
    x = UPPER * np.cos(shoulder) + LOWER * np.cos(both)
    y = UPPER * np.sin(shoulder) + LOWER * np.sin(both)
    expected = np.stack([x, y, np.zeros(4)], axis=1)
    np.testing.assert_allclose(TWO.places(angles), expected, atol=1e-9)


@given(ANGLES)
def test_orientations_are_unit_quaternions_xyzw_about_the_axis(angles):
    _, orientations = TWO.poses(angles)
    half = angles.sum(axis=1) / 2
    expected = np.stack([0 * half, 0 * half, np.sin(half), np.cos(half)], axis=1)
    same = np.abs((orientations * expected).sum(axis=1))  # q and -q are one orientation
    np.testing.assert_allclose(same, 1, atol=1e-9)


def test_joints_are_taken_in_the_given_order():
    swapped = Kinematics(ARM, 'tip', ['elbow', 'shoulder'])
    at = np.array([[0.3, -1.2]])
    np.testing.assert_array_equal(swapped.places(at[:, ::-1]), TWO.places(at))


def test_a_fixed_joint_position_counts():
    held = Kinematics(ARM, 'tip', ['shoulder'], fixed={'elbow': np.pi / 2})
    np.testing.assert_allclose(held.places(np.zeros((1, 1))), [[UPPER, LOWER, 0]], atol=1e-9)


@pytest.mark.parametrize(
    'link, joints',
    [
        ('base', ()),
        ('upper', ('shoulder',)),
        ('tip', ('shoulder', 'elbow')),
        ('jaw', ('shoulder', 'elbow', 'finger')),
    ],
)
def test_a_chain_names_the_root_and_the_movable_joints(link, joints):
    assert link in links(ARM) and chain(ARM, link) == ('base', joints)


def test_a_joint_without_a_child_is_refused():
    with pytest.raises(ValueError, match='joint elbow of the URDF must have a parent and a child'):
        chain(ARM.replace('<child link="lower"/>', ''), 'tip')


@pytest.mark.parametrize(
    'old, new, reason',
    [
        ('type="prismatic"', 'type="planar"', 'joint finger .* must be fixed, .*got planar'),
        ('xyz="0.5 0 0"', 'xyz="0.5 0"', 'xyz of joint elbow .* three numbers .got 0.5 0.'),
        ('axis xyz="0 0 1"', 'axis xyz="0 0 0"', 'axis of joint shoulder .* have a length'),
    ],
)
def test_a_joint_that_cannot_be_computed_is_refused(old, new, reason):
    with pytest.raises(ValueError, match=reason):
        Kinematics(ARM.replace(old, new, 1), 'jaw', ['shoulder'])


def test_a_name_that_the_urdf_lacks_is_refused():
    with pytest.raises(ValueError, match='link must be .* .got hand'):
        Kinematics(ARM, 'hand', ['shoulder'])
    with pytest.raises(ValueError, match='joint must be .* .got wrist'):
        Kinematics(ARM, 'tip', ['wrist'])


def mimicking(**joints):
    """Return the arm with an element <mimic> in each of these joints; values: its attributes."""
    root = ElementTree.fromstring(ARM)
    for one in root.findall('joint'):
        if mimic := joints.get(one.get('name')):
            one.append(ElementTree.fromstring(f'<mimic {mimic}/>'))
    return ElementTree.tostring(root, encoding='unicode')


FOLLOWS = 'joint="shoulder" multiplier="-2" offset="0.1"'


def test_a_mimicking_joint_follows_its_joint():
    follows = Kinematics(mimicking(elbow=FOLLOWS), 'tip', ['shoulder'])
    at = np.array([[0.3]])
    np.testing.assert_allclose(follows.places(at), TWO.places(np.array([[0.3, -0.5]])), atol=1e-12)
    assert chain(mimicking(elbow=FOLLOWS), 'tip') == ('base', ('shoulder',))


def test_a_joint_that_mimics_a_mimicking_joint_follows_the_first_one():
    description = mimicking(elbow=FOLLOWS, finger='joint="elbow" multiplier="3" offset="0.2"')
    at = np.array([[0.3]])
    expected = Kinematics(ARM, 'jaw', ['shoulder', 'elbow', 'finger']).places(
        np.array([[0.3, -0.5, 3 * -0.5 + 0.2]])
    )
    np.testing.assert_allclose(
        Kinematics(description, 'jaw', ['shoulder']).places(at), expected, atol=1e-12
    )


def test_mimic_joint_with_a_given_position_does_not_follow():
    at = np.array([[0.3, 1.0]])
    commanded = Kinematics(mimicking(elbow=FOLLOWS), 'tip', ['shoulder', 'elbow'])
    np.testing.assert_array_equal(commanded.places(at), TWO.places(at))
    held = Kinematics(mimicking(elbow=FOLLOWS), 'tip', ['shoulder'], {'elbow': 1.0})
    np.testing.assert_allclose(held.places(at[:, :1]), TWO.places(at), atol=1e-12)
    control = '<ros2_control><joint name="elbow" mimic="false"/></ros2_control></robot>'
    independent = mimicking(elbow=FOLLOWS).replace('</robot>', control)
    np.testing.assert_allclose(
        Kinematics(independent, 'tip', ['shoulder']).places(at[:, :1]),
        TWO.places(at * [1, 0]),
        atol=1e-12,
    )
    assert chain(independent, 'tip') == ('base', ('shoulder', 'elbow'))


@pytest.mark.parametrize(
    'mimic, reason',
    [
        ('joint="wrist"', "mimic of joint elbow .* must name a joint .*got 'wrist'"),
        ('joint="elbow"', "mimic of joint elbow .* does not follow it .got 'elbow'"),
        ('multiplier="2"', "mimic of joint elbow .*got ''"),
        ('joint="shoulder" multiplier="nan"', 'multiplier of joint elbow .* number .got nan'),
        ('joint="shoulder" offset="much"', 'offset of joint elbow .* number .got much'),
    ],
)
def test_a_mimic_that_cannot_be_followed_is_refused(mimic, reason):
    for call in (lambda text: Kinematics(text, 'tip', ['shoulder']), lambda t: chain(t, 'tip')):
        with pytest.raises(ValueError, match=reason):
            call(mimicking(elbow=mimic))


def test_joints_that_are_no_tree_are_refused():
    with pytest.raises(ValueError, match='link lower of the URDF must have one parent'):
        chain(ARM.replace('child link="tip"', 'child link="lower"'), 'jaw')
    with pytest.raises(ValueError, match='must form a tree .got a circle'):
        chain(ARM.replace('parent link="base"', 'parent link="jaw"'), 'tip')


@st.composite
def arms(draw):
    """Generate a chain of up to five joints with random origins and axes, and positions."""
    numbers = st.tuples(*[st.floats(-1, 1)] * 3)
    count = draw(st.integers(1, 5))
    text = '<robot name="any"><link name="link0"/>'
    for i in range(count):
        axis = draw(numbers.filter(lambda a: np.linalg.norm(a) > 0.1))
        place, rpy, axis = (' '.join(map(repr, v)) for v in (draw(numbers), draw(numbers), axis))
        kind = draw(st.sampled_from(['revolute', 'continuous', 'prismatic', 'fixed']))
        text += (
            f'<link name="link{i + 1}"/><joint name="joint{i}" type="{kind}">'
            f'<parent link="link{i}"/><child link="link{i + 1}"/><axis xyz="{axis}"/>'
            f'<origin xyz="{place}" rpy="{rpy}"/>'
            '<limit lower="-4" upper="4" velocity="1" effort="1"/></joint>'
        )
    positions = draw(arrays(float, (3, count), elements=st.floats(-3, 3)))
    return text + '</robot>', f'link{count}', positions


def poses_by_mujoco(description, link, positions):
    root = ElementTree.fromstring(description)
    for one in root.iter('link'):
        inertial = ElementTree.SubElement(one, 'inertial')
        ElementTree.SubElement(inertial, 'mass', value='1')
        each = dict(ixx='1', iyy='1', izz='1', ixy='0', ixz='0', iyz='0')
        ElementTree.SubElement(inertial, 'inertia', each)
    compiler = dict(fusestatic='false')
    ElementTree.SubElement(ElementTree.SubElement(root, 'mujoco'), 'compiler', compiler)
    model = mujoco.MjModel.from_xml_string(ElementTree.tostring(root, encoding='unicode'))
    data, result = mujoco.MjData(model), []
    for position in positions:
        for i, value in enumerate(position):
            at = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_JOINT, f'joint{i}')
            if at >= 0:
                data.qpos[model.jnt_qposadr[at]] = value
        mujoco.mj_kinematics(model, data)
        body = data.body(link)
        result.append([*body.xpos, *body.xquat[[1, 2, 3, 0]]])
    return np.split(np.array(result), [3], axis=1)


@given(arms())
@settings(max_examples=50)
def test_poses_of_any_chain_equal_those_of_mujoco(arm):
    description, link, positions = arm
    joints = [f'joint{i}' for i in range(positions.shape[1])]
    places, turns = Kinematics(description, link, joints).poses(positions)
    expected, expected_turns = poses_by_mujoco(description, link, positions)
    np.testing.assert_allclose(places, expected, atol=1e-9)
    np.testing.assert_allclose(np.abs((turns * expected_turns).sum(axis=1)), 1, atol=1e-9)
