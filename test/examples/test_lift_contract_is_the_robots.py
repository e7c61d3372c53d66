"""examples/robosuite/lift.yaml is a valid contract within the limits of the robot's model."""

from pathlib import Path

import numpy as np
import pytest

from embodied_kv.config import TABLETOP
from embodied_kv.robots.embodiment import Embodiment

CONTRACT = Path(__file__).resolve().parents[2] / 'examples' / 'robosuite' / 'lift.yaml'


@pytest.fixture
def robot():
    return Embodiment.load(str(CONTRACT))


@pytest.fixture
def ranges(robot):
    """Return the joint ranges of a model that allows exactly what the contract allows."""
    return np.array([robot.contract.limits[joint].position for joint in robot.joints[:7]])


def test_a_model_of_its_numbers_moves_it(robot):
    robot.check(robot.adapted(TABLETOP))


def test_arm_and_hand_are_two_controllers(robot):
    assert [len(output.axes) for output in robot.outputs] == [7, 1]


def test_clients_send_what_the_state_is_made_of(robot):
    assert sum(robot.contract.clients.state.values()) == len(robot.state.dimensions) == 8


def test_open_and_closed_are_the_ends_of_the_stroke(robot):
    fingers = np.zeros((2, 8))
    fingers[:, 7] = 0.04, 0.0
    assert robot.actions.policy(fingers)[:, 7].tolist() == [0.0, 1.0]


def test_limits_within_the_robots_own_are_accepted(module, robot, ranges):
    module('remote').check_limits(robot, ranges)
    module('remote').check_limits(robot, ranges + [-0.1, 0.1])


@pytest.mark.parametrize('end', [0, 1])
def test_limits_beyond_the_robots_own_are_refused(module, robot, ranges, end):
    ranges[3, end] += (0.01, -0.01)[end]
    with pytest.raises(RuntimeError, match='panda_joint4 may move .* correct the contract'):
        module('remote').check_limits(robot, ranges)
