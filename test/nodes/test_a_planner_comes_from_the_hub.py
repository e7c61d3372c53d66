"""`planner` of the memory node may name a repository of the Hugging Face hub."""

import huggingface_planners as hf
import pytest
from hub_server import server
from memory_suite import QUESTION, TABLE, call, parameters, segments
from std_srvs.srv import SetBool

from embodied_kv.nodes.action import Action
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.memory import Memory
from embodied_kv.nodes.perception import Perception

__all__ = ['server']  # a fixture
NAME = 'team/planner'


@pytest.fixture
def commit(server, tmp_path):
    return server.push(NAME, hf.folder(tmp_path / 'source', 'qwen3', template=None))


def brought(robot, folder):
    return robot.bring(Memory, **parameters(folder, planner=NAME, max_context_tokens=200))


def test_it_is_fetched_and_plans(robot, commit, tmp_path, capfd):
    node = brought(robot, tmp_path)
    assert node.trigger_configure().name == 'SUCCESS'
    assert node.trigger_activate().name == 'SUCCESS'
    assert f'{NAME} is at commit {commit}' in capfd.readouterr().err
    assert call(robot, 'upsert', segments=segments(*TABLE)).success
    answer = call(robot, 'plan', question=QUESTION)
    assert answer.success and len(answer.segments) == len(TABLE)


def test_while_an_arm_is_armed_it_is_not_fetched(robot, commit, server, tmp_path, capfd):
    robot.up(Perception, Action, armed=True)
    node = brought(robot, tmp_path)
    assert node.trigger_configure().name == 'FAILURE'
    assert server.requests == []
    said = capfd.readouterr().err
    assert 'nothing is fetched: an arm is armed; disarm it first' in said
    assert robot.call(SetBool, 'control/arm', data=False).success
    robot.until(lambda: not EngineHost._shared.is_held)
    assert node.trigger_configure().name == 'SUCCESS'
