"""Each shipped contract moves its robot, from sensor messages to controller commands in SI."""

import math
import time

import numpy as np
import pytest
import yaml
from geometry_msgs.msg import PoseStamped
from sensor_msgs.msg import JointState
from watchdog_thread import watchdog

from embodied_kv.nodes.action import Action
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.control.controllers import KINDS
from embodied_kv.nodes.observation.joint_states import joint_inputs
from embodied_kv.nodes.perception import Perception
from embodied_kv.robots.channels import GOALS, JOINT_STATE, TRAJECTORY, TWIST
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.reading import SHIPPED, shipped

PERIOD = 0.1  # s between two observations
CHUNK = 100  # actions of a chunk
# By contract: an action of the policy in its units, and the expected commands in SI.
SAYS = {
    'tabletop': ([0.1] * 6 + [0.02], [0.1] * 6 + [0.02]),
    'so101': ([10.0] * 5 + [50.0], [math.radians(10)] * 5 + [0.785398]),
    'ur5e': ([0.1] * 6 + [0.5], [0.1] * 6 + [0.4]),
    'franka': ([0.1] * 7 + [0.9], [0.3] * 7 + [0.8]),
    'franka_pi0': ([0.1] * 7 + [0.9], [0.3] * 7 + [0.8]),
    'aloha': (([0.1] * 6 + [0.5]) * 2, ([0.1] * 6 + [0.03822]) * 2),
    'franka_position': (
        [0.1] * 3 + [-1.4, 0.1, 1.1, 0.1, 0.9],
        [0.1] * 3 + [-1.4, 0.1, 1.1, 0.1, 0.8],
    ),
    'libero': ([0.1] * 6 + [0.8], [0.1] * 3 + [1.0] * 3 + [0.0]),
}
STARTS = {  # SI; the default of 0 is outside the limits or equals the target
    'panda_joint4': -1.5,
    'panda_joint6': 1.0,
    'panda_finger_joint1': 0.04,
    'left_left_finger': 0.05,
    'right_left_finger': 0.05,
}


class FakeRobot:
    """Publishes the observations of a contract, and records its commands."""

    def __init__(self, robot, contract):
        self.robot, self.embodiment = robot, Embodiment.load(contract)
        make = robot.node.create_publisher
        self.cameras = [
            make(type(robot.picture()), view.channel.topic, qos.SENSOR)
            for view in self.embodiment.contract.views.values()
        ]
        kinds = {JOINT_STATE: JointState}
        self.joints = [
            (make(kinds.get(j.type, PoseStamped), j.topic, qos.SENSOR), j)
            for j in joint_inputs(self.embodiment.contract)
        ]
        self.told = {output.topic: [] for output in self.embodiment.outputs}
        for output in self.embodiment.outputs:
            robot.node.create_subscription(
                KINDS[output.type], output.topic, self.told[output.topic].append, 100
            )
        self._next = 0.0

    def live(self):
        """Publish one observation if it is due."""
        if time.monotonic() < self._next:
            return
        self._next, stamp = time.monotonic() + PERIOD, self.robot.now()
        for publisher, told in self.joints:
            if told.type == JOINT_STATE:
                positions = [STARTS.get(name, 0.0) for name in told.joints]
                message = JointState(name=told.joints, position=positions)
            else:
                message = PoseStamped()
                message.pose.position.x, message.pose.orientation.w = 0.3, 1.0
            publisher.publish(self.robot.stamped(message, stamp))
        for camera in self.cameras:
            camera.publish(self.robot.picture(stamp))

    def until(self, happened):
        self.robot.until(lambda: self.live() or happened(), show=False)


@pytest.fixture(params=sorted(SAYS))
def fake(robot, request, tmp_path):
    """Start a suite whose policy always returns the same long chunk; return its fake robot."""
    values = yaml.safe_load((SHIPPED / f'{request.param}.yaml').read_text())
    contract = tmp_path / 'contract.yaml'
    contract.write_text(yaml.safe_dump(values | {'chunk_size': CHUNK, 'execution_horizon': CHUNK}))
    fake = FakeRobot(robot, str(contract))
    robot.up(Perception, Action, contract=str(contract), engine__time_budget=False)
    said, fake.wanted = SAYS[request.param]
    engine = EngineHost._shared.engine
    actions = np.tile(np.array(said, np.float32), (engine.policy.config.chunk_size, 1))
    object.__setattr__(engine, 'policy', Saying(engine.policy, actions))
    with watchdog(robot.namespace, str(contract)):
        yield fake


class Saying:
    """A policy with a fixed chunk."""

    def __init__(self, policy, actions):
        self._policy, self._actions = policy, actions

    def actions(self, normalised, state):
        return self._actions

    def __getattr__(self, name):
        return getattr(self._policy, name)


def test_all_contracts_are_tested():
    """Contracts with actions need control_msgs; test_grippers_and_trajectories tests them."""
    goals = {
        name
        for name in shipped()
        if any(output.type in GOALS for output in Embodiment.load(name).outputs)
    }
    assert set(SAYS) == set(shipped()) - goals


def test_every_controller_receives_the_right_numbers_in_si(fake):
    def right(output):
        wanted = [fake.wanted[place] for place in output.index]
        return any(
            np.allclose(said(output, m), wanted, atol=2e-3) for m in fake.told[output.topic]
        )

    fake.until(lambda: all(map(right, fake.embodiment.outputs)))


def said(output, message):
    """Return the numbers of a command, in the order of the contract."""
    if output.type == TRAJECTORY:
        assert tuple(message.joint_names) == output.axes
        return message.points[-1].positions
    if output.type == TWIST:
        assert message.header.frame_id == output.frame
        linear, angular = message.twist.linear, message.twist.angular
        return [linear.x, linear.y, linear.z, angular.x, angular.y, angular.z]
    return message.data
