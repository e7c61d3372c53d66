"""A node returns plausible positions of joints, or the reason why there are none."""

import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from observation_suite import joints as publisher_of

from embodied_kv.control.limits_from_contract import limits_from_contract
from embodied_kv.control.plausibility import Bounds
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.control.measured_joints import MeasuredJoints
from embodied_kv.nodes.observation.clock import StepDetector, WorldClock
from embodied_kv.nodes.observation.joint_merger import JointInput, JointMerger
from embodied_kv.robots.embodiment import Embodiment

ROBOT = Embodiment.load('tabletop')
PLACE = dict.fromkeys(ROBOT.axes, 0.02)
MS = 1_000_000
PUBLISH = """
import sys
import threading
import rclpy
from sensor_msgs.msg import JointState
from embodied_kv.nodes.common import qos

namespace, *axes = sys.argv[1:]
rclpy.init()
node = rclpy.create_node('left_running', namespace=namespace)
publisher = node.create_publisher(JointState, 'joint_states', qos.JOINTS)
over, state = threading.Event(), JointState(name=axes, position=[1.0] * len(axes))
threading.Thread(target=lambda: sys.stdin.read() or over.set()).start()
while not over.wait(0.005):
    state.header.stamp = node.get_clock().now().to_msg()
    publisher.publish(state)
node.destroy_node()
rclpy.shutdown()
"""


class Arm(SuiteNode):
    on_engine = False

    def __init__(self, **options):
        super().__init__('arm', **options)

    def find_host(self):
        return None

    def setup(self):
        self.joints = MeasuredJoints(self, 0.5, limits_from_contract(self.embodiment, ''))


@pytest.fixture
def arm(robot):
    """Return a node after half a second of joint states at PLACE."""
    node = robot.up(Arm)
    robot.send = publisher_of(robot)
    robot.until(lambda: node.count_publishers('joint_states') >= 2, show=False)
    assert node.joints.now() is None
    assert node.joints.problem() == 'no joint state received on joint_states'
    robot.until(lambda: sent(robot, node) and not node.joints.problem(), show=False)
    return node


def sent(robot, node, stamp=None, **positions):
    robot.send(stamp, **(PLACE | positions))
    robot.spin(0.01)
    node.joints._states.collect()
    return True


def test_plausible_joints_are_in_the_order_of_an_action(robot, arm):
    sent(robot, arm, elbow=0.05)
    np.testing.assert_allclose(
        arm.joints.now().position, [0.05 if a == 'elbow' else 0.02 for a in ROBOT.axes]
    )


def test_single_message_of_zeros_is_counted_and_changes_nothing(robot, arm):
    before = arm.joints.now().position
    stamp = robot.now()
    sent(robot, arm, stamp)
    sent(robot, arm, stamp + 2 * MS, **dict.fromkeys(ROBOT.axes, 1.0))
    robot.until(lambda: arm.warning_counts['joint state'], show=False)
    assert arm.warning_counts['joint state'] == 1 and arm.joints.problem() == ''
    np.testing.assert_array_equal(arm.joints.now().position, before)


def test_one_joint_that_is_not_a_number_is_unknown_alone(robot, arm):
    def unknown():
        sent(robot, arm, elbow=np.nan)
        return arm.joints.problem() == 'joint elbow must be finite (got nan); check its driver'

    robot.until(unknown, show=False)
    position = arm.joints.now().position
    np.testing.assert_array_equal(np.isnan(position), [a == 'elbow' for a in ROBOT.axes])


def test_second_publisher_is_named_and_the_first_one_counts_again_later(robot, arm):
    words = [sys.executable, '-c', PUBLISH, robot.namespace, *ROBOT.axes]
    other = subprocess.Popen(words, stdin=subprocess.PIPE)

    def contradicted():
        sent(robot, arm)
        return f'{robot.namespace}/left_running' in arm.joints.problem()

    robot.until(contradicted, show=False)
    problem = arm.joints.problem()
    assert problem.startswith('joint shoulder_pan must not move faster than 6 rad/s')
    assert f'publishers of joint_states: {robot.namespace}/left_running, ' in problem
    assert f'{robot.namespace}/robot' in problem
    for _ in range(10):
        contradicted()
    assert arm.joints.problem()
    other.stdin.close()
    assert other.wait(60) == 0
    robot.until(lambda: sent(robot, arm) and not arm.joints.problem(), show=False)
    np.testing.assert_allclose(arm.joints.now().position, 0.02)


def test_positions_of_topics_with_other_rates_are_of_one_moment():
    """A slow gripper topic must not make positions of the arm older than they are, or newer."""
    moment, fast, slow = 2_000 * MS, ['hip'], ['finger']
    inputs = [JointInput('joint_states', ('hip',)), JointInput('gripper', ('finger',))]
    bounds = {name: Bounds(-9.0, 9.0, 9.0) for name in (*fast, *slow)}
    states = JointMerger(inputs, 0.5, bounds, lambda topic: ())
    for at in range(0, moment + 1, 10 * MS):  # 1 rad/s
        states.add('joint_states', at, fast, [at * 1e-9], (), at)
        if at % (200 * MS) == 0 and at < moment:
            states.add('gripper', at, slow, [at * 1e-9], (), at)
    joints = MeasuredJoints.__new__(MeasuredJoints)
    joints._states, joints._places, joints._size = states, [0, 1], 2
    joints._steps = SimpleNamespace(has_stepped=lambda: False)
    joints._clock = SimpleNamespace(stamp=moment, moment=lambda stamp: stamp * 1e-9)
    measured = joints.now()
    assert measured.moment == pytest.approx(1.8)
    np.testing.assert_allclose(measured.position, 1.8, atol=1e-6)
    np.testing.assert_allclose(measured.velocity, 1.0, atol=1e-6)


@pytest.mark.parametrize('step', [-400 * MS, 150 * MS])
def test_joints_are_unknown_after_a_step_of_the_system_clock(robot, arm, step):
    sent(robot, arm)
    assert arm.joints.now() is not None
    clock = WorldClock(arm.get_clock())
    arm.joints._steps._clock = Shifted(clock, step)
    assert arm.joints.now() is None
    robot.until(lambda: sent(robot, arm) and arm.joints.now() is not None, show=False)


class Shifted:
    """A clock that was set."""

    is_simulated = False

    def __init__(self, clock, step):
        self._clock, self._step = clock, step

    @property
    def stamp(self):
        return self._clock.stamp + self._step


def test_a_clock_that_runs_on_and_a_simulated_one_have_no_step():
    clock = SimpleNamespace(is_simulated=False, stamp=time.time_ns())
    steps = StepDetector(clock)
    for _ in range(3):
        clock.stamp = time.time_ns()
        assert not steps.has_stepped()
    clock.is_simulated, clock.stamp = True, 0
    assert not steps.has_stepped()
