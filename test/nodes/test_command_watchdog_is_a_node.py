"""The command watchdog as a node: its topics, its heartbeat, and its requirements to start."""

import signal
import subprocess
import sys
import time
import uuid

import numpy as np
import pytest
from geometry_msgs.msg import TwistStamped
from rclpy.parameter import Parameter
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory
from watchdog_thread import watchdog

from embodied_kv.control.command import FRESH, Setpoint
from embodied_kv.control.command_watchdog import ZEROS, VelocityOutputs
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.control.arm_outputs import ArmOutputs
from embodied_kv.nodes.watchdog import WatchdogNode
from embodied_kv.robots.reading import SHIPPED, ContractError

KINDS = {'franka': Float64MultiArray, 'libero': TwistStamped}
RATE = 5.0  # set-points per second; the timeout of 0.5 s is enough on a busy machine


class ActionNode(SuiteNode):
    """A node with the outputs of an action node."""

    on_engine = False

    def find_host(self):
        return None

    def setup(self):
        self.outputs = ArmOutputs(self, self.embodiment.outputs, qos.action(1.0), RATE)

    def move(self, velocity, positions=None):
        velocities = np.full(len(self.embodiment.axes), velocity)
        self.outputs.setpoint(Setpoint(None, positions, velocities, FRESH, 0.0))


class Bed:
    """An action node with a contract, and the values that the controllers receive."""

    def __init__(self, robot, contract):
        self.robot, self.values = robot, []
        overrides = [Parameter('contract', value=contract)]
        self.node = ActionNode('action', namespace=robot.namespace, parameter_overrides=overrides)
        robot.suite.append(self.node)
        robot.executor.add_node(self.node)
        assert self.node.trigger_configure().name == self.node.trigger_activate().name == 'SUCCESS'
        for output in VelocityOutputs.of(self.node.embodiment).outputs:
            kind = KINDS[contract]
            robot.node.create_subscription(kind, output.topic, self._hear, 100)
        gripper = 'gripper_controller/joint_trajectory'  # so that every output has a controller
        robot.node.create_subscription(JointTrajectory, gripper, lambda _: None, 1)

    def _hear(self, message):
        if isinstance(message, TwistStamped):
            assert message.header.frame_id == 'panda_link0' and message.header.stamp.sec
            linear, angular = message.twist.linear, message.twist.angular
            self.values.append((linear.x, linear.y, linear.z, angular.x, angular.y, angular.z))
        else:
            self.values.append(tuple(message.data))

    def until(self, happened):
        self.robot.until(happened, show=False, timeout=60.0)

    def move_until(self, happened, velocity=0.2, pause=0.025):
        """Send set-points until `happened` returns true."""

        def step():
            self.node.move(velocity)
            self.robot.spin(pause)
            return happened()

        self.until(step)

    @property
    def rests(self):
        return bool(self.values) and not any(self.values[-1])


@pytest.fixture
def bed(robot):
    return Bed(robot, 'franka')


@pytest.mark.parametrize('contract', KINDS)
def test_set_points_are_forwarded_and_silence_becomes_zeros(robot, contract):
    bed = Bed(robot, contract)
    with watchdog(robot.namespace, contract):
        bed.until(lambda: not bed.node.outputs.problem())
        bed.move_until(lambda: len(bed.values) >= 5)
        assert all(np.allclose(values, 0.2) for values in bed.values)
        count = len(bed.values)
        bed.until(lambda: bed.rests and len(bed.values) >= count + ZEROS)
        assert not np.any(bed.values[-ZEROS:])
        bed.until(lambda: 'ended the motion: no set-point' in bed.node.outputs.problem())
        bed.node.outputs.zero()
        assert bed.node.outputs.problem() == ''
        bed.move_until(lambda: not bed.rests)


def test_without_a_watchdog_the_controllers_receive_nothing_but_zeros(bed):
    bed.until(lambda: 'ros2 run embodied_kv command_watchdog' in bed.node.outputs.problem())
    bed.move_until(lambda: len(bed.values) >= 3)
    assert not np.any(bed.values)


@pytest.mark.filterwarnings('ignore::pytest.PytestUnhandledThreadExceptionWarning')
def test_dead_watchdog_is_reported_and_its_successor_continues_no_motion(bed):
    name = bed.robot.namespace
    with watchdog(name, 'franka') as node:
        bed.until(lambda: not bed.node.outputs.problem())
        bed.move_until(lambda: bed.values and any(bed.values[-1]))
        node.check = sys.exit  # ends its thread without zeros; heartbeats stop
        bed.move_until(lambda: 'is not running' in bed.node.outputs.problem())
        bed.move_until(lambda: bed.rests)
    with watchdog(name, 'franka'):
        bed.values.clear()
        bed.move_until(lambda: 'it was restarted' in bed.node.outputs.problem())
        bed.move_until(lambda: len(bed.values) >= 3)
        assert not np.any(bed.values)


def test_a_controller_that_does_not_subscribe_is_a_problem(robot):
    overrides = [Parameter('contract', value='franka')]
    node = ActionNode('action', namespace=robot.namespace, parameter_overrides=overrides)
    robot.suite.append(node)
    assert node.trigger_configure().name == 'SUCCESS'
    with watchdog(robot.namespace, 'franka'):
        topic = f'{robot.namespace}/joint_velocity_controller/commands'
        assert f'no controller subscribes to {topic}' in node.outputs.problem()


def test_a_watchdog_with_another_contract_is_a_problem(bed, tmp_path):
    other = tmp_path / 'other.yaml'
    text = (SHIPPED / 'franka.yaml').read_text()
    assert 'velocity: 2.175' in text
    other.write_text(text.replace('velocity: 2.175', 'velocity: 1.0'))
    with watchdog(bed.robot.namespace, str(other)):
        bed.until(lambda: 'same parameter contract' in bed.node.outputs.problem())
        bed.move_until(lambda: len(bed.values) >= 3)
        assert not np.any(bed.values)


def test_a_suspended_control_loop_does_not_continue_its_motion(bed):
    with watchdog(bed.robot.namespace, 'franka'):
        bed.until(lambda: not bed.node.outputs.problem())
        bed.move_until(lambda: bed.values and any(bed.values[-1]))
        time.sleep(1.0)
        bed.node.move(0.2)
        assert 'interrupted for 1.' in bed.node.outputs.problem()
        bed.until(lambda: bed.rests)
        count = len(bed.values)
        bed.move_until(lambda: len(bed.values) >= count + 5)
        assert not np.any(bed.values[count:])


def test_a_heartbeat_counts_while_the_executor_is_busy(bed):
    with watchdog(bed.robot.namespace, 'franka'):
        bed.until(lambda: not bed.node.outputs.problem())
        time.sleep(0.6)  # nothing spins the node
        assert bed.node.outputs.problem() == ''


def test_position_outputs_receive_positions_and_no_zeros(robot, tmp_path):
    text = (SHIPPED / 'franka.yaml').read_text()
    contract = tmp_path / 'contract.yaml'
    contract.write_text(
        text.replace('gripper_controller/joint_trajectory', 'gripper_controller/commands').replace(
            'trajectory_msgs/msg/JointTrajectory', 'std_msgs/msg/Float64MultiArray'
        )
    )
    KINDS[str(contract)] = Float64MultiArray
    bed, heard = Bed(robot, str(contract)), []
    del KINDS[str(contract)]
    topic = 'gripper_controller/commands'
    robot.node.create_subscription(Float64MultiArray, topic, heard.append, 100)
    assert bed.node.outputs.follow_setpoints
    positions = np.full(len(bed.node.embodiment.axes), 0.3)

    def step():
        bed.node.move(0.0, positions)
        bed.robot.spin(0.02)
        return len(heard) >= 3

    bed.until(step)
    assert {tuple(m.data) for m in heard} == {(0.3,)}
    robot.spin(0.2)
    count = len(heard)
    bed.node.move(0.0, None)
    bed.node.outputs.zero()
    robot.spin(0.3)
    assert len(heard) == count


def test_a_contract_without_velocities_needs_no_watchdog(robot):
    overrides = [Parameter('contract', value='tabletop')]
    node = ActionNode('action', namespace=robot.namespace, parameter_overrides=overrides)
    robot.suite.append(node)
    assert node.trigger_configure().name == 'SUCCESS'
    assert node.outputs.problem() == '' and not node.outputs.follow_setpoints
    node.outputs.zero()


def test_a_contract_that_does_not_exist_is_refused(robot):
    overrides = [Parameter('contract', value='nowhere')]
    with pytest.raises(ContractError, match='nowhere'):
        WatchdogNode(namespace=robot.namespace, parameter_overrides=overrides)


def test_the_watchdog_imports_no_torch():
    code = 'import sys, embodied_kv.nodes.watchdog; print(sorted(sys.modules))'
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    heavy = {'torch', 'transformers', 'websockets', 'mujoco', 'cv2', 'scipy'}
    assert "'rclpy'" in run.stdout and not heavy & set(eval(run.stdout))


def executable(*words):
    namespace = f'/alone_{uuid.uuid4().hex[:8]}'
    line = [sys.executable, '-m', 'embodied_kv.nodes.watchdog', '--ros-args', *words]
    return subprocess.Popen(
        [*line, '-r', f'__ns:={namespace}'],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize(
    'contract, status, line',
    [('tabletop', 0, 'no velocity outputs'), ('nowhere', 1, 'must be a file or one of')],
)
def test_the_process_ends_where_there_is_nothing_to_watch(contract, status, line):
    process = executable('-p', f'contract:={contract}')
    said, _ = process.communicate(timeout=120)
    assert process.returncode == status and line in said and 'Traceback' not in said


def test_the_process_ends_at_rest_by_a_signal():
    process = executable('-p', 'contract:=franka')
    assert 'forwards velocity set-points' in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
