"""examples/robosuite/bridge.py passes the controllers' trajectories on to the simulated world."""

import math
import time

import numpy as np
import pytest

rclpy = pytest.importorskip('rclpy', reason='no ROS 2 is sourced: run through tools/env')
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor  # noqa: E402
from rclpy.qos import qos_profile_sensor_data  # noqa: E402
from sensor_msgs.msg import Image, JointState  # noqa: E402
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint  # noqa: E402


@pytest.fixture
def context():
    """Start a ROS context for the test; afterwards restart one for other files in this process."""
    others = rclpy.ok()
    if others:
        rclpy.shutdown()
    rclpy.init()
    yield
    rclpy.try_shutdown()
    if others:
        rclpy.init()


@pytest.fixture
def code(context, module):
    return module('bridge')


@pytest.fixture
def bridge(code, world):
    world.lasts = math.inf  # any number of steps until a message arrives
    node = code.Bridge(world, code.link.ROBOT, 0)
    yield node
    node.destroy_node()


@pytest.fixture
def outside(context):
    node = rclpy.create_node('outside')
    yield node
    node.destroy_node()


def wait(happened):
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline, 'it did not happen'


def spin(nodes, happened):
    executor = SingleThreadedExecutor()
    for node in nodes:
        executor.add_node(node)
    wait(lambda: executor.spin_once(timeout_sec=0.05) or happened())


def arm(goal, names):
    points = []
    for place, seconds in ((goal / 2, 0.25), (goal, 0.5)):
        point = JointTrajectoryPoint(positions=np.full(7, place).tolist())
        point.time_from_start.nanosec = round(seconds * 1e9)
        points.append(point)
    return JointTrajectory(joint_names=names, points=points)


def test_nothing_moves_until_it_is_told(bridge, world):
    start = world.joints.copy()
    bridge.step()
    assert (world.told[0] == start).all() and start[7] == 0.02


def test_a_trajectory_is_played_in_the_worlds_time(bridge, world, outside):
    names = [f'panda_joint{i}' for i in range(1, 8)]
    told = outside.create_publisher(JointTrajectory, 'arm_controller/joint_trajectory', 1)
    spin([bridge, outside], lambda: told.get_subscription_count())
    before = world.joints.copy()

    def moves():
        told.publish(arm(1.0, names[::-1]))
        bridge.step()
        return (world.told[-1] != before).any()

    spin([bridge, outside], moves)
    begun = len(world.told)
    for _ in range(12):
        bridge.step()
    path = np.stack(world.told)[begun - 1 :, :7]
    assert (path[9:] == 1.0).all() and (np.diff(path, axis=0)[:9] != 0).all()
    assert (np.stack(world.told)[:, 7] == 0.02).all()  # the hand received no command


def test_what_is_seen_is_published_in_the_contracts_topics(bridge, world, outside):
    heard = {}
    for topic, kind in (('joint_states', JointState), ('wrist_camera/image_raw', Image)):
        outside.create_subscription(
            kind, topic, lambda m, topic=topic: heard.update({topic: m}), qos_profile_sensor_data
        )
    spin([bridge, outside], lambda: bridge.step() or len(heard) == 2)
    assert heard['joint_states'].name[-1] == 'panda_finger_joint1'
    assert (heard['wrist_camera/image_raw'].height, len(heard['joint_states'].position)) == (12, 8)


def test_what_is_no_trajectory_of_its_joints_is_refused(bridge, world, outside):
    told = outside.create_publisher(JointTrajectory, 'arm_controller/joint_trajectory', 1)
    spin([bridge, outside], lambda: told.get_subscription_count())
    start = world.joints.copy()
    said = []
    bridge.get_logger().warning = lambda line, **_: said.append(line)
    spin([bridge, outside], lambda: told.publish(arm(1.0, ['elbow'] * 7)) or said)
    bridge.step()
    assert 'arm_controller/joint_trajectory is refused' in said[0]
    assert (world.told[-1] == start).all()


def test_a_bridge_that_is_always_late_hears_what_it_is_told(code, bridge, world, outside):
    told = outside.create_publisher(JointTrajectory, 'arm_controller/joint_trajectory', 1)
    clockwork = code.Clockwork(bridge, 0.0)  # each step is due before it can begin
    names, before = [f'panda_joint{i}' for i in range(1, 8)], world.joints.copy()

    def moves():
        told.publish(arm(1.0, names))
        clockwork.run(0.05)
        return (world.told[-1] != before).any()

    wait(moves)


def test_starts_that_a_shutdown_breaks_off_are_not_judged(code, bridge, world, capsys):
    reset = world.reset

    def shut_down_at_the_third(seed):
        if seed == 7:
            rclpy.shutdown()
        return reset(seed)

    world.lasts, world.reset, bridge.is_armed = 100, shut_down_at_the_third, True
    with pytest.raises(ExternalShutdownException):
        code.judge(bridge, code.Clockwork(bridge, 0.0), 4, 5)
    said = capsys.readouterr().out
    assert [line.partition(':')[0] for line in said.splitlines()[:-1]] == ['start 5', 'start 6']
    assert 'start 6: lifted in 3.5 s' in said and 'lifted from 2 of 2 starts' in said


def test_no_start_begins_before_the_arm_is_armed(code, bridge, world, outside, capsys):
    states = outside.create_publisher(code.ControlState, 'control/state', code.qos.STATUS)
    reset, step, begun = world.reset, world.step, []

    def armed_at_last(*told):
        if bridge.steps >= 200:
            states.publish(code.ControlState(state=code.ControlState.ARMED))
        return step(*told)

    world.lasts, world.step = 100, armed_at_last
    world.reset = lambda seed: begun.append(bridge.steps) or reset(seed)
    code.judge(bridge, code.Clockwork(bridge, 0.0), 1, 5)
    assert begun[0] >= 200
    said = capsys.readouterr().out
    assert 'waiting until the arm is armed' in said and 'lifted from 1 of 1 starts' in said
