"""Forward kinematics and its closed-form inverse agree with each other and with the physics."""

import numpy as np
import pytest

from embodied_kv.demo.sim import kinematics
from embodied_kv.demo.sim.tabletop import Tabletop, joint_limits


def workspace(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(
        (0.25, -0.25, 0.015), (0.55, 0.25, 0.20), (count, 3)
    )


def test_zero_pose_is_an_upside_down_l():
    point = kinematics.forward(np.zeros((1, 7)))[0]
    assert np.allclose(point, (0.34, 0, 0.20 + 0.34 - 0.16))


def test_forward_of_top_down_equals_point_in_all_of_the_workspace():
    points = workspace(2000)
    yaw = np.random.default_rng(1).uniform(-np.pi, np.pi, len(points))
    joints = kinematics.top_down(points, yaw)
    lower, upper = joint_limits()
    assert np.abs(kinematics.forward(joints) - points).max() < 1e-9
    assert (joints >= lower[:6]).all() and (joints <= upper[:6]).all()


def test_forward_equals_simulated_gripper_for_random_joints():
    rng = np.random.default_rng(2)
    lower, upper = joint_limits()
    with Tabletop() as table:
        for _ in range(5):
            table.command(rng.uniform(0.4 * lower, 0.4 * upper))
            table.step(0.35)
            assert np.allclose(
                kinematics.forward(table.state()[None])[0], table.gripper_position(), atol=1e-6
            )


def test_top_down_gripper_has_the_asked_yaw_and_points_down():
    with Tabletop() as table:
        joints = kinematics.top_down([[0.4, 0.1, 0.15]], 0.7)[0]
        table.command(np.append(joints, 0.04))
        table.step(1.5)
        point = table.gripper_position()
        ahead = point + 0.05 * np.array((np.cos(0.7), np.sin(0.7), 0))
        pixels = table.project(np.stack([point, ahead, point - (0, 0, 0.05)]), 'wrist')
    across, below = pixels[1] - pixels[0], pixels[2] - pixels[0]
    assert abs(across[0]) < 0.1 and across[1] < -5  # the gripper's x points up in its image
    assert abs(below[0]) < 0.1


@pytest.mark.parametrize('point', [(0.9, 0, 0.1), (0.0, 0.0, 2.0), (np.nan, 0, 0)])
def test_a_point_out_of_reach_is_refused(point):
    with pytest.raises(ValueError, match='does not reach'):
        kinematics.top_down([(0.4, 0, 0.1), point])


def test_reaches_equals_top_down_within_the_joint_limits():
    points = np.random.default_rng(3).uniform((-0.7, -0.7, 0.0), (0.7, 0.7, 0.5), (500, 3))
    lower, upper = joint_limits()

    def solved(point: np.ndarray) -> bool:
        try:
            joints = kinematics.top_down([point])[0, :5]
        except ValueError:
            return False
        return bool((lower[:5] <= joints).all() and (joints <= upper[:5]).all())

    expected = [solved(point) for point in points]
    assert 100 < sum(expected) < 400
    assert kinematics.reaches(points).tolist() == expected


def test_the_reach_on_the_table_ends_between_67_and_68_cm():
    points = [(r * np.cos(0.4), r * np.sin(0.4), 0.02) for r in (0.27, 0.5, 0.67, 0.68, 0.9)]
    assert kinematics.reaches(points).tolist() == [True, True, True, False, False]
    assert kinematics.reaches([(0, 0, 0.04), (np.nan, 0, 0)]).tolist() == [False, False]
