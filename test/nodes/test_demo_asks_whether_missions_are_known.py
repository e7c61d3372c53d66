"""The demo gives a mission only if the config of the planner states that it knows missions."""

from dataclasses import replace

import pytest
from memory_suite import CONFIG, begin
from rcl_interfaces.srv import GetParameters

from embodied_kv.demo.mission_client import UNKNOWN, MissionClient
from embodied_kv.model.planner import PLANNER_MISSIONS
from embodied_kv.model.planner_checkpoint import random_planner, save_planner, without_missions
from embodied_kv.model.weights import CheckpointError


@pytest.fixture
def taught(tmp_path):
    """Return the folder of a planner whose config has the name of the planner for missions."""
    made = random_planner(replace(CONFIG, name=PLANNER_MISSIONS.name))
    save_planner(tmp_path / 'taught', made.model.state_dict(), made.config, made.tokenizer)
    return tmp_path / 'taught'


def refusal(robot, there=True):
    client = MissionClient(robot.node)
    robot.until(lambda: client._parameters.service_is_ready() == there, show=False)
    client.ask()
    robot.until(lambda: client.refusal is not None, show=False)
    return client.refusal


def test_without_memory_there_is_no_mission(robot):
    assert refusal(robot, there=False) == UNKNOWN


def test_a_planner_that_was_not_taught_missions_is_given_none(robot, tmp_path):
    begin(robot, tmp_path)
    assert refusal(robot) == 'the planner test was not trained for missions'


def test_a_mission_needs_its_node(robot, tmp_path, taught):
    begin(robot, tmp_path, planner=str(taught))
    assert refusal(robot) == 'no mission server is available; activate the node mission'


def test_a_memory_that_does_not_say_is_given_none(robot):
    says_nothing = lambda _, response: response  # noqa: E731
    robot.node.create_service(GetParameters, 'memory/get_parameters', says_nothing)
    assert refusal(robot) == 'the memory node has no parameters planner and contract'


def test_a_card_is_read_or_the_folder_refused(taught, tmp_path):
    assert without_missions(taught) == ''
    with pytest.raises((CheckpointError, OSError)):
        without_missions(tmp_path / 'nothing')
