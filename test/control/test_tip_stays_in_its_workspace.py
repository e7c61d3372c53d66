"""A motion brakes before the tip leaves the box, or does not begin."""

import numpy as np
import pytest
from control_cases import assert_feasible, chunk, make_executor, seen
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_kv.control.limits import Limits
from embodied_kv.control.motion import follow
from embodied_kv.control.workspace import Workspace


def joint(name, parent, child, x, axis='0 1 0', kind='revolute'):
    limit = '<limit lower="-3" upper="3" velocity="3" effort="1"/>' if kind == 'revolute' else ''
    return (
        f'<joint name="{name}" type="{kind}"><parent link="{parent}"/><child link="{child}"/>'
        f'<origin xyz="{x} 0 0"/><axis xyz="{axis}"/>{limit}</joint>'
    )


LINKS = ''.join(f'<link name="{name}"/>' for name in ('base', 'upper', 'lower', 'hand'))
MESH = '<visual><geometry><mesh filename="package://nowhere/hand.dae"/></geometry></visual>'
URDF = (
    f'<robot name="planar">{LINKS}<link name="tip">{MESH}</link>'
    + joint('pan', 'base', 'upper', 0, '0 0 1')
    + joint('elbow', 'upper', 'lower', 0.5, '0 0 1')
    + joint('wrist', 'lower', 'hand', 0.5)
    + joint('flange', 'hand', 'tip', 0.1, kind='fixed')
    + '</robot>'
)
LIMITS = Limits(['pan', 'elbow'], [-3] * 2, [3] * 2, [2] * 2, [10] * 2, ['position'] * 2)
BOX = [-0.2, -0.6, -0.1], [0.9, 0.6, 0.1]


@pytest.fixture(scope='module')
def workspace():
    return Workspace(URDF, 'tip', *BOX, LIMITS)


def outside(tips):
    return np.maximum(np.maximum(tips - BOX[1], BOX[0] - tips), 0).max(1)


def test_tip_position_equals_the_urdf(workspace):
    at = np.array([[0.0, 0.0], [np.pi / 2, 0.0], [0.0, np.pi / 2]])
    tips = [[1.1, 0, 0], [0, 1.1, 0], [0.5, 0.6, 0]]
    np.testing.assert_allclose(workspace.tips(at), tips, atol=1e-9)
    bent = Workspace(URDF, 'tip', *BOX, LIMITS, fixed={'wrist': np.pi / 2})
    np.testing.assert_allclose(bent.tips(at[:1]), [[1.0, 0, -0.1]], atol=1e-9)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**16))
def test_motions_from_inside_stay_in_the_box(workspace, seed):
    random = np.random.default_rng(seed)
    position, velocity = np.array([0.0, 2.0]), np.zeros(2)
    for _ in range(4):
        actions = LIMITS.clip(position + np.cumsum(random.normal(0, 0.2, (8, 2)), axis=0))
        motion = workspace.confine(follow(position, velocity, actions, 0.0, 0.1, LIMITS))
        if motion is None:
            return  # the running motion continues
        assert_feasible(motion, LIMITS)
        times = np.linspace(0, motion.duration, 300)
        assert outside(workspace.tips(motion.sample(times)[0])).max() < 1e-4
        position, velocity = motion.at(random.uniform(0, 1) * motion.duration)


def test_motion_inside_the_box_is_unchanged(workspace):
    motion = follow(np.array([0.0, 2.0]), np.zeros(2), np.full((5, 2), [0.1, 2.1]), 0, 0.1, LIMITS)
    assert workspace.confine(motion) is motion


def test_tip_outside_may_only_come_nearer(workspace):
    start = np.array([0.0, 0.0])  # the tip at 1.1 m, 0.2 m outside
    back = follow(start, np.zeros(2), np.full((20, 2), [0.0, 2.0]), 0.0, 0.1, LIMITS)
    assert workspace.confine(back) is back
    stretched = np.array([0.0, 0.5])
    further = follow(stretched, np.zeros(2), np.full((20, 2), 0.0), 0.0, 0.1, LIMITS)
    assert workspace.confine(further).duration < 0.05


def test_arm_too_fast_to_brake_within_the_box_is_refused(workspace):
    fast = np.array([0.0, -2.0])
    edge = follow(np.array([0.0, 0.9]), fast, np.full((5, 2), 0.0), 0.0, 0.1, LIMITS)
    assert outside(workspace.tips(edge.positions[:1])) == 0
    assert workspace.confine(edge) is None


def test_executor_cuts_the_motion_at_the_box(workspace):
    executor = make_executor(LIMITS, confine=workspace.confine)
    far = chunk(np.full((8, 2), 0.0))
    took = executor.take_over(far, 0.0, 0.0, seen(0.0, 0.0, 2.0))
    assert took.values is not None and took.blended
    tip = workspace.tips(executor.rest())
    assert outside(tip).max() == 0 and tip[0, 0] > 0.7
    out = executor.take_over(far, 9.0, 9.0, seen(9.0, 0.0, 0.3))
    assert out.blended and not executor.is_moving(9.1)


def test_running_motion_continues_if_the_next_leaves_the_box():
    executor = make_executor(confine=lambda motion: None if motion.positions.max() > 1 else motion)
    executor.take_over(chunk(np.full((8, 2), 0.5)), 0.0, 0.0, seen(0.0))
    refused = executor.take_over(chunk(np.full((8, 2), 2.0)), 0.1, 0.1, seen(0.1))
    assert refused.reason == 'it leaves the workspace' and executor.counters.refused == 1
    np.testing.assert_allclose(executor.rest(), 0.5, atol=1e-5)


@pytest.mark.parametrize(
    'changed, said',
    [
        (dict(tip='tool'), 'link must be .* .got tool'),
        (dict(fixed={'knee': 0.0}), 'joint must be .* .got knee'),
        (dict(lower=[0, 0, 1], upper=[1, 1, 1]), 'must be a box'),
        (dict(robot_description='<robot'), 'must be XML'),
        (dict(robot_description='<robot name="x"><link/></robot>'), 'link must be .* .got tip'),
    ],
)
def test_invalid_workspace_is_refused(changed, said):
    fields = dict(
        robot_description=URDF, tip='tip', lower=BOX[0], upper=BOX[1], limits=LIMITS, fixed=None
    )
    with pytest.raises(ValueError, match=said):
        Workspace(**fields | changed)


def test_motion_with_an_unknown_tip_position_is_refused(workspace, monkeypatch):
    motion = follow(np.array([0.0, 2.0]), np.zeros(2), np.full((5, 2), [0.1, 2.1]), 0, 0.1, LIMITS)
    monkeypatch.setattr(workspace, 'tips', lambda positions: np.full((len(positions), 3), np.nan))
    assert workspace.confine(motion) is None
