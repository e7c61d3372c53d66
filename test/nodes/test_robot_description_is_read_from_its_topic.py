"""A latched robot_description is read at configure.

A later one that disagrees disarms the arm and forbids arming.
"""

import time
from functools import partial
from types import SimpleNamespace

import pytest
import yaml
from std_msgs.msg import String
from std_srvs.srv import SetBool

from embodied_kv.msg import ControlState
from embodied_kv.nodes.action import Action
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.control import robot_description
from embodied_kv.nodes.perception import Perception
from embodied_kv.robots.reading import SHIPPED, load

LIMITS = load('tabletop').limits
BOX = {'frame': 'gripper', 'x': [-1.0, 1.0], 'y': [-1.0, 1.0], 'z': [-1.0, 1.0]}


def urdf(height=0.0, **lower):
    """Return a URDF of the joints of `tabletop`.

    height: of each joint (m). lower: lower limits by joint.
    """
    joints = ''.join(
        f'<joint name="{name}" type="revolute"><parent link="base"/><child link="{name}"/>'
        f'<origin xyz="0 0 {height}"/><limit lower="{lower.get(name, of.position[0])}" '
        f'upper="{of.position[1]}" velocity="{of.velocity}" effort="1"/></joint>'
        f'<link name="{name}"/>'
        for name, of in LIMITS.items()
    )
    return f'<robot name="tabletop"><link name="base"/>{joints}</robot>'


def publish(robot, text, topic='robot_description'):
    """Latch a description; return the publisher."""
    publisher = robot.node.create_publisher(String, topic, qos.STATUS)
    publisher.publish(String(data=text))
    return publisher


def published(robot, text, **options):
    """Return an action node that knows the publisher of a description, and the publisher."""
    action, publisher = robot.bring(Action, **options), publish(robot, text)
    robot.until(lambda: action.count_publishers(publisher.topic_name), show=False)
    return action, publisher


def configures(action):
    return action.trigger_configure().name == 'SUCCESS'


@pytest.fixture
def changed(tmp_path):
    """Return a function that writes a tabletop contract and returns its path.

    The contract has a workspace, or lacks the position limits of the elbow.
    """

    def write(workspace=None):
        contract = yaml.safe_load((SHIPPED / 'tabletop.yaml').read_text())
        if workspace:
            contract['workspace'] = workspace
        else:
            del contract['limits']['elbow']['position']
        path = tmp_path / 'changed.yaml'
        path.write_text(yaml.safe_dump(contract))
        return str(path)

    return write


@pytest.fixture
def states(robot):
    """Return the messages on control/state, the newest last."""
    heard = []
    robot.node.create_subscription(ControlState, 'control/state', heard.append, qos.STATUS)
    return heard


def test_limits_wider_than_a_published_urdf_are_refused(robot, capfd):
    action, publisher = published(robot, urdf(elbow=-1.0))
    assert not configures(action)
    said = capfd.readouterr().err
    assert 'joint elbow: lower limit must be within -1, ' in said and '(got -1.5)' in said
    assert f'received on {publisher.topic_name}' in said


def test_published_urdf_gives_the_limits_that_the_contract_leaves_open(robot, changed):
    action, _ = published(robot, urdf(elbow=-1.25), contract=changed())
    assert configures(action)
    assert action._executor().limits.lower[2] == -1.25


@pytest.mark.parametrize('workspace, tool_frame', [(BOX, ''), (None, 'gripper')])
def test_configure_waits_for_a_required_urdf(robot, changed, monkeypatch, workspace, tool_frame):
    contract, publishers = changed(workspace) if workspace else 'tabletop', []

    def sleep(seconds):
        time.sleep(seconds)
        if not publishers:  # published while the node waits
            publishers.append(publish(robot, urdf()))

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
    monkeypatch.setattr(robot_description, 'time', clock)
    assert configures(robot.bring(Action, contract=contract, tool_frame=tool_frame))
    assert publishers


def test_contract_that_needs_a_urdf_is_refused_without_one(robot, changed, capfd, monkeypatch):
    monkeypatch.setattr(robot_description, 'NEEDED', 0.2)
    assert not configures(robot.bring(Action, contract=changed()))
    said = capfd.readouterr().err
    assert 'limits.elbow.position is missing' in said
    assert f'publish it on {robot.namespace}/robot_description (no message within 0.2 s)' in said


def test_without_a_publisher_configure_does_not_wait(robot, monkeypatch):
    slept = []
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=slept.append)
    monkeypatch.setattr(robot_description, 'time', clock)
    assert configures(robot.bring(Action))
    assert not slept


def test_publisher_without_a_message_delays_configure_only(robot, capfd, monkeypatch):
    monkeypatch.setattr(robot_description, 'PUBLISHED', 0.2)
    publisher = robot.node.create_publisher(String, 'robot_description', qos.STATUS)
    action = robot.bring(Action)
    robot.until(lambda: action.count_publishers(publisher.topic_name), show=False)
    assert configures(action)
    assert f'no message on {publisher.topic_name} within 0.2 s' in capfd.readouterr().err


def test_parameter_has_priority_over_the_topic(robot):
    action, _ = published(robot, urdf(elbow=-1.0), robot_description=urdf())
    assert configures(action)


def test_topic_can_be_remapped(robot, capfd):
    topic = f'{robot.namespace}_arm/robot_description'
    remapped = partial(Action, cli_args=['--ros-args', '-r', f'robot_description:={topic}'])
    action, _ = robot.bring(remapped), publish(robot, urdf(elbow=-1.0), topic)
    robot.until(lambda: action.count_publishers(topic), show=False)
    assert not configures(action)
    assert f'received on {topic}' in capfd.readouterr().err


@pytest.mark.parametrize(
    'text, said', [('<robot', 'must be XML'), ('', 'must be XML'), ('<sdf/>', 'must be a URDF')]
)
def test_unreadable_urdf_is_refused_until_it_is_replaced(robot, capfd, text, said):
    action, publisher = published(robot, text)
    assert not configures(action)
    error = capfd.readouterr().err
    assert f'robot_description {said}' in error
    assert f'received on {publisher.topic_name}' in error
    publisher.publish(String(data=urdf()))
    assert configures(action)


@pytest.mark.parametrize(
    'text, difference',
    [
        (urdf(elbow=-1.0), 'joint elbow: lower limit must be within -1'),
        ('<robot', 'robot_description must be XML'),
    ],
)
def test_later_urdf_that_disagrees_disarms_and_forbids_to_arm(robot, states, text, difference):
    _, action = robot.up(Perception, Action)
    robot.until(lambda: robot.trajectories)
    publisher = publish(robot, text)
    robot.until(lambda: states and states[-1].state == ControlState.DISARMED)
    assert 'robot_description changed' in states[-1].reason
    publisher.publish(String(data=urdf()))  # too late: only configure ends the disagreement
    robot.show()
    refused = robot.call(SetBool, 'control/arm', data=True)
    assert not refused.success and difference in refused.message
    assert 'deactivate, clean up and configure the action node again' in refused.message
    for again in (action.trigger_deactivate, action.trigger_cleanup, action.trigger_configure):
        assert again().name == 'SUCCESS'
    assert action.trigger_activate().name == 'SUCCESS'
    robot.until(lambda: robot.call(SetBool, 'control/arm', data=True).success)


def test_later_urdf_that_agrees_changes_nothing(robot, capfd):
    robot.up(Perception, Action)
    robot.until(lambda: robot.trajectories)
    publish(robot, urdf(elbow=-9.0))  # the contract is narrower
    said = ''

    def agrees():
        nonlocal said
        said += capfd.readouterr().err
        return 'robot_description agrees with the configuration' in said

    robot.until(agrees)
    robot.more(robot.trajectories)


@pytest.mark.parametrize(
    'workspace, text, difference',
    [
        (None, urdf(elbow=-1.4), 'joint elbow: lower limit is -1.4 instead of -1.5'),
        (BOX, urdf(height=0.1), 'joint shoulder_pan: place is'),
        (
            BOX,
            urdf()
            .replace('<origin', '<mimic joint="elbow"/><origin', 1)
            .replace(
                '</robot>',
                '<ros2_control><joint name="shoulder_pan" mimic="false"/></ros2_control></robot>',
            ),
            'joint shoulder_pan: place is',
        ),
    ],
)
def test_urdf_that_changes_forbids_to_arm(robot, changed, workspace, text, difference):
    contract = changed(workspace)
    robot.up(Perception, contract=contract, armed=False)
    action, publisher = published(robot, urdf(), contract=contract, armed=False)
    assert configures(action)
    publisher.publish(String(data=text))
    robot.until(lambda: action._urdf.problem(0.0))
    assert difference in action._urdf.problem(0.0)
    assert action.trigger_activate().name == 'SUCCESS'
    robot.show()
    refused = robot.call(SetBool, 'control/arm', data=True)
    assert not refused.success and difference in refused.message


def test_arm_is_not_armed_by_activation_while_the_urdf_disagrees(robot, states):
    robot.up(Perception)
    action = robot.bring(Action, armed=True)
    assert configures(action)
    publish(robot, urdf(elbow=-1.0))
    robot.until(lambda: action._urdf.problem(0.0))
    assert action.trigger_activate().name == 'SUCCESS'
    robot.until(lambda: states and 'joint elbow' in states[-1].reason)
    assert states[-1].state == ControlState.DISARMED
