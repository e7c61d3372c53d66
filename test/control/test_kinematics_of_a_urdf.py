"""A link is where trigonometry says, and its chain names the joints that move it."""

import sys

import numpy as np
import pytest
from hypothesis import given
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
    with pytest.raises(ValueError, match='joint elbow of the URDF has no parent or no child'):
        chain(ARM.replace('<child link="lower"/>', ''), 'tip')


def test_the_remedy_for_a_missing_mujoco_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, 'mujoco', None)
    with pytest.raises(ValueError, match='mujoco must be installed .*; run pip install mujoco'):
        Kinematics(ARM, 'tip', ['shoulder'])
