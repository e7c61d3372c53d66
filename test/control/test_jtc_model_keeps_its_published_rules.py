"""The model of joint_trajectory_controller in `jtc.py` follows the published rules.

The cases are those of test/test_trajectory.cpp and test_trajectory_controller.cpp of the original.
"""

import numpy as np
import pytest
from jtc import SECOND, JointTrajectoryController, Point, Trajectory

NAMES = ['a', 'b']


def point(seconds, *positions, **others):
    return Point(round(seconds * SECOND), list(positions), **others)


def controller(**options):
    return JointTrajectoryController(NAMES, [0.0, 0.0], **options)


@pytest.mark.parametrize(
    'message, said',
    [
        (Trajectory(['a'], [point(1, 0)]), "don't match the controller joints"),
        (Trajectory(['a', 'c'], [point(1, 0, 0)]), "Incoming joint c doesn't match"),
        (Trajectory(NAMES, []), 'Empty trajectory'),
        (Trajectory(NAMES, [point(1, 0, 0)], stamp=8 * SECOND), 'ends in the past'),
        (Trajectory(NAMES, [point(1, 0, 0), point(1, 1, 1)]), 'not strictly increasing'),
        (Trajectory(NAMES, [point(1, 0)]), 'Mismatch'),
        (Trajectory(NAMES, [point(1, 0, 0, velocities=[0.0])]), 'Mismatch'),
        (Trajectory(NAMES, [point(1, 0, 0, velocities=[0.0, 0.1])]), 'is not zero'),
        (Trajectory(NAMES, [point(1, 0, 0, effort=[1.0, 1.0])]), 'effort'),
    ],
)
def test_rejected_trajectories(message, said):
    assert said in controller().receive(message, 10 * SECOND)


def test_accepted_trajectories():
    assert controller().receive(Trajectory(NAMES, [point(1, 0, 0)]), 10 * SECOND) == ''
    late = Trajectory(NAMES, [point(1, 0, 0)], stamp=9 * SECOND + 1)
    assert controller().receive(late, 10 * SECOND) == ''
    assert controller(partial=True).receive(Trajectory(['b'], [point(1, 0)]), 0) == ''


def run(made, seconds, speed=(0.0, 0.0), since=0.0):
    for now in range(round(since * SECOND), round(seconds * SECOND), made.cycle):
        made.update(now, made.positions, made.velocities if speed is None else speed)
    return made.positions


def test_stamp_zero_starts_when_it_is_received_and_names_are_sorted():
    made = controller()
    made.receive(Trajectory(['b', 'a'], [point(1, 2.0, 1.0)]), 0)
    np.testing.assert_allclose(run(made, 0.5), [0.5, 1.0])  # positions only: linear
    np.testing.assert_allclose(run(made, 1.5, since=0.5), [1.0, 2.0])


def test_positions_and_velocities_give_a_cubic():
    made = controller()
    made.receive(Trajectory(NAMES, [point(1, 1.0, 1.0, velocities=[0.0, 0.0])]), 0)
    np.testing.assert_allclose(run(made, 0.25), 3 * 0.25**2 - 2 * 0.25**3)


def test_accelerations_give_a_quintic():
    made = controller(replacement=False)
    still = dict(velocities=[0.0, 0.0], accelerations=[0.0, 0.0])
    made.receive(Trajectory(NAMES, [point(0, 0, 0, **still), point(1, 1, 1, **still)]), 0)
    t = 0.25
    np.testing.assert_allclose(run(made, t), 10 * t**3 - 15 * t**4 + 6 * t**5)


def test_missing_joint_stays_if_partial_goals_are_allowed():
    made = controller(partial=True)
    made.receive(Trajectory(['b'], [point(1, 1.0)]), 0)
    assert run(made, 1.5).tolist() == [0.0, 1.0]


@pytest.mark.parametrize('options', [dict(), dict(replacement=False, from_desired=True)])
def test_replacement_continues_the_previous_trajectory(options):
    made = controller(**options)
    way = [point(t, t, t, velocities=[1.0, 1.0]) for t in (0.1, 1.0)]
    way.append(point(1.5, 1.25, 1.25, velocities=[0.0, 0.0]))
    made.receive(Trajectory(NAMES, way), 0)
    run(made, 0.5)
    before = made.velocities
    made.receive(Trajectory(NAMES, [point(1, 0.5, 0.5, velocities=[0.0, 0.0])]), SECOND // 2)
    run(made, 0.502, since=0.5)
    np.testing.assert_allclose(made.velocities, before, atol=0.05)


def test_without_a_measured_velocity_a_hard_replacement_starts_at_rest():
    made = controller(replacement=False)
    made.receive(Trajectory(NAMES, [point(1, 1, 1)]), 0)
    run(made, 0.5, speed=None)
    made.receive(Trajectory(NAMES, [point(1, 1, 1, velocities=[0.0, 0.0])]), SECOND // 2)
    made.update(SECOND // 2, made.positions)
    assert abs(made.velocities).max() < 0.02
