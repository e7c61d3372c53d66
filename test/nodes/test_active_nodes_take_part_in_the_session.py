"""A node takes part in a session while it is active; the action node from configure on."""

import pytest

from embodied_kv.nodes.action import Action
from embodied_kv.nodes.language import Language
from embodied_kv.nodes.perception import Perception
from embodied_kv.nodes.session import Session


@pytest.mark.parametrize('kind', [Perception, Language, Session])
def test_an_inactive_node_takes_no_part(robot, tmp_path, kind):
    nodes = robot.up(Perception, Language, Session, capsule_directory=str(tmp_path))
    (node,) = (node for node in nodes if isinstance(node, kind))
    participants = node.host.session(robot.namespace).participants
    assert set(participants._all) == set(nodes)
    assert node.trigger_deactivate().name == 'SUCCESS'
    assert set(participants._all) == set(nodes) - {node}
    assert participants.makes_frames is (kind is not Perception)
    assert node.trigger_activate().name == 'SUCCESS'
    assert set(participants._all) == set(nodes)


def test_an_inactive_action_node_knows_the_instruction_and_holds_nothing(robot):
    action = robot.bring(Action)
    assert action.trigger_configure().name == 'SUCCESS'
    perception = robot.up(Perception, instruction='')
    participants = perception.host.session(robot.namespace).participants
    participants.on_hold()
    assert action._safety.missing(robot.now() / 1e9).endswith('no instruction')
    assert perception.trigger_deactivate().name == 'SUCCESS'
    perception._frames.instruction = 'wave'
    assert perception.trigger_activate().name == 'SUCCESS'
    assert not action._safety.missing(robot.now() / 1e9).endswith('no instruction')
    assert action.trigger_cleanup().name == 'SUCCESS'
    assert participants._all == (perception,)


def test_robots_in_one_process_share_no_participants(robots):
    for robot in (robots(), robots()):
        perception, action = robot.up(Perception, Action)
        session = perception.host.session(robot.namespace)
        assert set(session.participants._all) == {perception, action}
