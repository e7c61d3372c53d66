"""examples/aloha/transfer.yaml has the shipped contract's numbers, within gym-aloha's limits."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embodied_kv.config import TABLETOP_SMALL
from embodied_kv.robots.embodiment import Embodiment

CONTRACT = Path(__file__).resolve().parents[2] / 'examples' / 'aloha' / 'transfer.yaml'


@pytest.fixture
def robot():
    return Embodiment.load(str(CONTRACT))


def test_a_model_of_its_numbers_moves_it(robot):
    robot.check(robot.adapted(TABLETOP_SMALL))


def test_numbers_of_state_and_action_are_those_of_the_shipped_contract(robot):
    shipped = Embodiment.load('aloha')
    assert robot.state.dimensions == shipped.state.dimensions
    for mine, theirs in zip(robot.actions.dimensions, shipped.actions.dimensions, strict=True):
        assert replace(mine, relative=theirs.relative) == theirs


def test_a_gripper_is_0_and_1_where_gym_aloha_says_so(robot):
    fingers = np.zeros((2, 14))
    fingers[:, [6, 13]] = [[0.01844], [0.058]]
    told = robot.actions.policy(fingers)[:, [6, 13]]
    np.testing.assert_allclose(told, [[0, 0], [1, 1]], atol=1e-3)


def test_limits_wider_than_gym_alohas_are_refused(transfer, robot):
    ranges = np.array([robot.contract.limits[joint].position for joint in robot.joints])
    transfer('remote').check_limits(robot, ranges)
    ranges[6] = 0.022, 0.056
    with pytest.raises(RuntimeError, match='left_left_finger may move within'):
        transfer('remote').check_limits(robot, ranges)
