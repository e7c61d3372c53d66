"""Goals of control_msgs: what grippers and trajectory controllers receive and report."""

import sys

import numpy as np
import pytest
import rclpy
from builtin_interfaces.msg import Time
from goal_server import Pair
from sensor_msgs.msg import JointState
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from embodied_kv.nodes.control.action_outputs import (
    ABORTED,
    CANCELLED,
    PERIOD,
    REPLACED,
    STALLED,
    SUCCEEDED,
    FollowTrajectoryClient,
    GripperClient,
    action_type,
)
from embodied_kv.nodes.control.controllers import setpoint_message
from embodied_kv.robots.channels import (
    FOLLOW_TRAJECTORY,
    GOALS,
    GRIPPER,
    JOINT_STATE,
    PARALLEL_GRIPPER,
)
from embodied_kv.robots.mapping import Output

try:
    action_type(PARALLEL_GRIPPER)
    MISSING = ''
except ValueError as error:
    MISSING = str(error)
needs_control_msgs = pytest.mark.skipif(bool(MISSING), reason=MISSING)
CLIENTS = {FOLLOW_TRAJECTORY: FollowTrajectoryClient}


def output(kind, effort=0.0):
    return Output('controller/do', kind, ('finger',), (0,), False, '', effort)


@pytest.fixture(scope='module', autouse=True)
def ros():
    started = not rclpy.ok()
    if started:
        rclpy.init()
    yield
    if started:
        rclpy.shutdown()


@pytest.fixture
def make():
    """Return a function that makes a server and the client of a type."""
    made = []

    def pair(kind, effort=0.0):
        one = Pair(action_type(kind), 'controller/do')
        one.client = CLIENTS.get(kind, GripperClient)(one.node, output(kind, effort), one.report)
        made.append(one)
        one.until(lambda: not one.client.problem())
        return one

    yield pair
    for one in made:
        one.client.close()
        one.close()


def trajectory(*places):
    points = [JointTrajectoryPoint(positions=[place]) for place in places]
    return JointTrajectory(joint_names=['finger'], points=points)


def at(position):
    return setpoint_message(output(GRIPPER), [position], Time())


def test_joint_state_command_has_names_positions_and_a_stamp():
    message = setpoint_message(
        Output('t', JOINT_STATE, ('a', 'b'), (0, 1), False, ''), [0.5, -1.0], Time(sec=3)
    )
    assert (message.name, list(message.position)) == (['a', 'b'], [0.5, -1.0])
    assert message.header.stamp.sec == 3 and not message.velocity and not message.effort


@pytest.mark.parametrize('kind', GOALS)
def test_missing_package_names_what_to_install(kind, monkeypatch):
    monkeypatch.setitem(sys.modules, 'control_msgs.action', None)
    with pytest.raises(ValueError, match=r'must be .* install ros-\$\{ROS_DISTRO\}-control-msgs$'):
        CLIENTS.get(kind, GripperClient)(None, output(kind), print)


@needs_control_msgs
def test_trajectory_is_the_goal(make):
    pair = make(FOLLOW_TRAJECTORY)
    pair.client.publish(trajectory(0.1, 0.2))
    pair.until(lambda: pair.active)
    assert pair.goals[0].trajectory == trajectory(0.1, 0.2)
    assert not pair.goals[0].path_tolerance and not pair.goals[0].goal_tolerance


@needs_control_msgs
def test_replaced_trajectory_that_ends_as_an_invalid_goal_is_no_fault(make):
    pair = make(FOLLOW_TRAJECTORY)
    pair.preempted = pair.action.Result(error_code=-1, error_string='preempted')
    for place in (0.1, 0.2):
        pair.client.publish(trajectory(place))
    pair.until(lambda: pair.outcomes)
    assert pair.states == [REPLACED]


@needs_control_msgs
@pytest.mark.parametrize('newer', [False, True])
def test_violated_tolerance_is_a_fault_with_its_reason(make, newer):
    pair = make(FOLLOW_TRAJECTORY)
    pair.client.publish(trajectory(0.1))
    pair.until(lambda: pair.active)
    if newer:  # it is sent, but the controller ends the old goal first
        pair.client.publish(trajectory(0.2))
    pair.end('abort', error_code=-4, error_string='finger is 0.3 away')
    pair.until(lambda: pair.outcomes)
    assert pair.states == [ABORTED]
    assert str(pair.outcomes[0]) == (
        'goal of /controller/do was aborted (PATH_TOLERANCE_VIOLATED: finger is 0.3 away)'
    )


@needs_control_msgs
@pytest.mark.parametrize('effort', [0.0, 20.0])
def test_gripper_goals_have_position_and_effort(make, effort):
    gripper = make(GRIPPER, effort)
    gripper.client.publish(at(0.3))
    gripper.until(lambda: gripper.active)
    command = gripper.goals[0].command
    assert (command.position, command.max_effort) == (0.3, effort)


@needs_control_msgs
@pytest.mark.parametrize('effort', [0.0, 20.0])
def test_parallel_gripper_goals_name_the_joint(make, effort):
    parallel = make(PARALLEL_GRIPPER, effort)
    parallel.client.publish(at(0.3))
    parallel.until(lambda: parallel.active)
    command = parallel.goals[0].command
    assert (command.name, list(command.position)) == (['finger'], [0.3])
    assert list(command.effort) == ([effort] if effort else []) and not command.velocity


@needs_control_msgs
def test_stream_of_positions_is_few_goals_of_which_the_last_is_the_newest(make):
    pair = make(GRIPPER)
    places = np.linspace(0, 0.8, 50)
    for place in places:
        pair.client.publish(at(place))
        pair.spin(0.005)
    pair.until(lambda: pair.goals and pair.goals[-1].command.position == places[-1])
    assert len(pair.goals) < len(places)
    before = len(pair.goals)
    for _ in range(3):
        pair.client.publish(at(places[-1]))
    pair.spin(2 * PERIOD)
    assert len(pair.goals) == before


@needs_control_msgs
@pytest.mark.parametrize('how', ['abort', 'succeed'])
@pytest.mark.parametrize('kind', [GRIPPER, PARALLEL_GRIPPER])
def test_gripper_that_holds_an_object_is_no_fault(make, kind, how):
    pair = make(kind)
    pair.client.publish(at(0.8))
    pair.until(lambda: pair.active)
    pair.end(how, stalled=True)
    pair.until(lambda: pair.outcomes)
    assert pair.states[0] in (STALLED, SUCCEEDED) and not pair.outcomes[0].is_fault


@needs_control_msgs
def test_position_is_sent_again_after_a_fault_or_a_cancellation(make):
    pair = make(GRIPPER)
    pair.client.publish(at(0.8))
    pair.until(lambda: pair.active)
    pair.end('abort')
    pair.until(lambda: pair.states == [ABORTED])
    pair.client.publish(at(0.8))
    pair.until(lambda: pair.active)
    pair.client.cancel()
    pair.until(lambda: pair.states == [ABORTED, CANCELLED])
    pair.spin(2 * PERIOD)
    assert len(pair.goals) == 2
    pair.client.publish(JointState(position=[0.8]))
    pair.until(lambda: len(pair.goals) == 3)
