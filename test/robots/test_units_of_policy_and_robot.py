"""Values are converted by policy = scale * SI + offset and back, in the policy's order."""

import copy
import math

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.robots.mapping import ActionMap, StateMap, outputs
from embodied_kv.robots.reading import SHIPPED, load, parse, shipped

SO101 = yaml.safe_load((SHIPPED / 'so101.yaml').read_text())


@given(st.sampled_from(shipped()), st.integers(0, 2**32 - 1))
def test_actions_come_back_within_their_clamps(name, seed):
    maps = ActionMap(load(name))
    rng = np.random.default_rng(seed)
    bounds = np.array([d.clamp or (-3.0, 3.0) for d in maps.dimensions]).T
    actions = rng.uniform(*bounds, (5, len(maps.dimensions)))
    ends = np.where(2 * actions > bounds.sum(0), bounds[1], bounds[0])
    wanted = np.where([d.binary for d in maps.dimensions], ends, actions)
    np.testing.assert_allclose(maps.policy(maps.si(actions)), wanted, atol=1e-9)


@given(st.sampled_from(shipped()), st.integers(0, 2**32 - 1))
def test_policy_receives_the_state_within_its_clamps(name, seed):
    maps = ActionMap(load(name))
    lower, upper = np.array([d.clamp or (-np.inf, np.inf) for d in maps.dimensions]).T
    done = np.random.default_rng(seed).uniform(-5.0, 5.0, (5, len(maps.dimensions)))
    told = maps.policy(done)
    assert (told >= lower).all() and (told <= upper).all()
    binary = np.array([d.binary for d in maps.dimensions])
    assert ((told == lower) | (told == upper))[:, binary].all()
    np.testing.assert_allclose(maps.policy(maps.si(told)), told, atol=1e-9)  # unchanged


@pytest.mark.parametrize('name', shipped())
def test_action_that_is_not_executed_is_reported_as_such(name):
    maps = ActionMap(load(name))
    nothing = np.full((2, len(maps.dimensions)), np.nan)
    assert np.isnan(maps.policy(nothing)).all()


def test_degrees_become_radians_and_a_share_a_stroke():
    si = ActionMap(load('so101')).si(np.array([90.0, -90.0, 0.0, 45.0, 180.0, 50.0]))
    stroke = (-0.174533 + 1.74533) / 2
    np.testing.assert_allclose(si, [np.pi / 2, -np.pi / 2, 0, np.pi / 4, np.pi, stroke], atol=1e-4)


def test_a_step_becomes_a_velocity():
    libero, franka = ActionMap(load('libero')), ActionMap(load('franka'))
    hand = libero.si(np.array([1.0, -1.0, 0.0, 1.0, 0.0, 0.0, -1.0]))
    np.testing.assert_allclose(hand, [1.0, -1.0, 0.0, 10.0, 0.0, 0.0, 0.04])
    arm = franka.si(np.array([1.0, 0.5, 0, 0, 0, 0, -1.0, 0.7]))
    np.testing.assert_allclose(arm, [3.0, 1.5, 0, 0, 0, 0, -3.0, 0.8])


def test_value_beyond_a_clamp_is_clamped():
    si = ActionMap(load('franka')).si(np.array([2.0, -5.0, 0, 0, 0, 0, 0, 0.2]))
    np.testing.assert_allclose(si, [3.0, -3.0, 0, 0, 0, 0, 0, 0.0])


def test_the_state_is_in_the_policys_order():
    values = copy.deepcopy(SO101)
    arm, gripper = values['observations']['observation.state']
    arm['index'], gripper['index'] = [5, 4, 3, 2, 1], [0]
    maps = StateMap(parse(values, 'x'))
    joints = ['shoulder_pan', 'shoulder_lift', 'elbow_flex', 'wrist_flex', 'wrist_roll']
    si = {joint: i / 10 for i, joint in enumerate(joints)}
    state = maps.policy(si | {'gripper': -0.174533})
    wanted = [0.0, *np.rad2deg([0.4, 0.3, 0.2, 0.1, 0.0])]
    np.testing.assert_allclose(state, wanted, atol=1e-3)


def test_a_number_that_is_missing_is_named():
    arm = dict.fromkeys((s.removeprefix('position.') for s in load('so101').state[0].select), 0.0)
    for gripper in ({}, {'gripper': math.nan}, {'gripper': math.inf}):
        with pytest.raises(ValueError, match=r'^position\.gripper must be known and finite'):
            StateMap(load('so101')).policy(arm | gripper)


def test_a_topic_is_one_output_in_the_contracts_order():
    values = copy.deepcopy(SO101)
    arm, gripper = values['actions']['action']
    arm['index'], gripper['index'] = [5, 4, 3, 2, 1], [0]
    first, second = outputs(parse(values, 'x'))
    assert first.axes[0] == 'shoulder_pan' and first.index == (5, 4, 3, 2, 1)
    assert second.axes == ('gripper',) and second.index == (0,)


def test_values_far_outside_their_clamps_are_counted():
    maps = ActionMap(load('franka'))
    assert maps.outside(np.zeros((4, 8))) == 0.0
    assert maps.outside(np.full((4, 8), 2.5)) == 0.125  # only the gripper: its clamp is 0 to 1
    assert maps.outside(np.full((4, 8), 57.3)) == 1.0
