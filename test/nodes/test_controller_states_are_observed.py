"""The states of trajectory controllers are read, and faults are reported."""

import sys
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
import rclpy
from rclpy.parameter import Parameter
from trajectory_msgs.msg import JointTrajectory

from benchmarks.safety.world import JTC, World
from embodied_kv.control.controller_reference import PATIENCE
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.control.arm_outputs import ArmOutputs
from embodied_kv.nodes.control.controller_states import MISSING, state_type

needs_control_msgs = pytest.mark.skipif(state_type() is None, reason=MISSING)
ARM = 'scaled_joint_trajectory_controller'
STATE = f'{ARM}/controller_state'
PERIOD = 0.01  # s between two states
HALT = 60.0  # s for something that takes a second


class ActionNode(SuiteNode):
    """A node with the outputs of an action node."""

    on_engine = False

    def find_host(self):
        return None

    def setup(self):
        self.outputs = ArmOutputs(self, self.embodiment.outputs, qos.action(1.0))


def active_node(robot):
    """Return an active node with the contract ur5e."""
    overrides = [Parameter('contract', value='ur5e')]
    made = ActionNode('action', namespace=robot.namespace, parameter_overrides=overrides)
    robot.suite.append(made)
    robot.executor.add_node(made)
    assert made.trigger_configure().name == made.trigger_activate().name == 'SUCCESS'
    return made


@pytest.fixture
def node(robot):
    """Return an active node whose command topics have subscribers."""
    made = active_node(robot)
    for output in made.embodiment.outputs:
        robot.node.create_subscription(JointTrajectory, output.topic, lambda _: None, 1)
    robot.until(lambda: not made.outputs.problem(), show=False)
    return made


class Controller:
    """Publishes a reference of the joints of the arm, in another order and with another joint."""

    def __init__(self, robot, node):
        self._robot, self._node = robot, node
        self._joints = ['rail', *reversed(node.embodiment.outputs[0].axes)]
        self._publisher = robot.node.create_publisher(state_type(), STATE, 10)
        robot.until(lambda: self._publisher.get_subscription_count(), show=False)

    def until(self, reported, places=(), sent=None):
        """Publish positions of the joints until the node reports something; return the report.

        sent: the position that the suite sends for every joint while it moves the arm.
        """
        message = state_type()(joint_names=self._joints)
        message.reference.positions = [99.0, *(float(place) for place in reversed(places))]
        end = time.monotonic() + HALT
        while True:
            if sent is not None:
                self._node.outputs.watch(np.full(len(self._node.embodiment.axes), sent))
            if reported(problem := self._node.outputs.problem()):
                return problem
            assert time.monotonic() < end, problem
            if len(places):
                self._publisher.publish(message)
            self._robot.spin(PERIOD)

    def during(self, seconds, *arguments, **options):
        """Publish for a time; return the problem of the node at the end."""
        end = time.monotonic() + seconds
        return self.until(lambda _: time.monotonic() > end, *arguments, **options)


def test_without_control_msgs_nothing_is_read(robot, monkeypatch):
    monkeypatch.setitem(sys.modules, 'control_msgs.msg', None)
    node = active_node(robot)
    node.outputs.watch(np.zeros(7))
    assert node.outputs.explanation() == ''
    topics = [name for name, _ in node.get_topic_names_and_types()]
    assert not [name for name in topics if name.endswith('controller_state')]


@needs_control_msgs
def test_a_reference_that_is_not_what_was_sent_is_a_problem(robot, node):
    controller = Controller(robot, node)
    assert controller.during(3 * PATIENCE, [0.5] * 6, sent=0.5) == ''
    elsewhere = [0.5, 0.5, -0.7, 0.5, 0.5, 0.5]
    problem = controller.until(bool, elsewhere, sent=0.5)
    joint = node.embodiment.outputs[0].axes[2]
    assert problem == (
        f'controller {robot.namespace}/{ARM} did not take the trajectory: its reference of joint '
        f'{joint} is at -0.700, 0.500 was sent'
    )
    assert node.outputs.explanation() == problem
    assert controller.during(PATIENCE, elsewhere) == ''  # the suite does not move the arm


@needs_control_msgs
def test_a_controller_that_falls_silent_is_a_problem_until_it_publishes(robot, node):
    controller = Controller(robot, node)
    assert controller.during(2 * PATIENCE) == ''  # it has never published
    assert controller.during(2 * PATIENCE, np.zeros(6)) == ''
    problem = controller.until(bool)
    assert problem.startswith(f'controller {robot.namespace}/{ARM} has been silent for 0.')
    controller.until(lambda problem: not problem, np.zeros(6))


@contextmanager
def published(world):
    """Make the simulated controller publish its reference while it is active."""
    node = rclpy.create_node('controller', namespace=world.namespace)
    publisher = node.create_publisher(state_type(), STATE, 10)
    controller, over = world.arm.controller, threading.Event()

    def publish():
        message = state_type()(joint_names=world.arm.names)
        while not over.wait(PERIOD):
            if controller.active:
                message.reference.positions = controller.command.tolist()
                publisher.publish(message)

    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    try:
        assert world.wait(publisher.get_subscription_count)
        yield controller
    finally:
        over.set()
        thread.join()
        node.destroy_node()


@needs_control_msgs
@pytest.mark.slow
def test_an_inactive_controller_forbids_to_arm(ros):
    with World(JTC) as world, published(world) as controller:
        world.act()
        assert world.call('arm', False)[0]
        controller.active = False
        silent = f'{ARM} has been silent'
        assert world.wait(lambda: silent in world.call('arm')[1])
        controller.activate(world.arm.position)
        assert world.wait(lambda: world.call('arm')[0])
        assert world.state[0] == 'armed'


@needs_control_msgs
@pytest.mark.slow
def test_a_controller_that_takes_its_trajectories_is_never_reported(ros):
    with World(JTC) as world, published(world):
        world.act()
        time.sleep(3.0)
        assert world.state[0] == 'armed', world.state


@needs_control_msgs
@pytest.mark.slow
def test_a_rejected_trajectory_is_named_where_the_arm_does_not_follow(ros):
    with World(JTC, JTC.scheduled) as world, published(world) as controller:
        controller._rejection = lambda message: 'a test'
        assert world.arm_and_tell()[0]
        assert world.wait(lambda: world.state[0] == 'disarmed'), world.state
        assert f'{ARM} did not take the trajectory' in world.state[1], world.state
