"""A real robot process with simulated controllers, cameras and a policy server around it.

`World` starts the process `remote_robot`, and for velocities the process `command_watchdog`, with
a shipped contract of which the actions are absolute. A policy server stand-in answers each request
with a chunk that a function chooses. All of it is in one ROS domain and in a namespace of its own,
on this machine; all files are in a temporary folder. Processes are ended by their process id.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType

import numpy as np
import rclpy
import yaml
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from numpy.typing import NDArray
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String
from std_srvs.srv import SetBool, Trigger
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

import embodied_kv
from benchmarks.common.command import BenchmarkError
from benchmarks.common.workers import Workers
from benchmarks.safety.plant import (
    Controller,
    Joints,
    Motion,
    Plant,
    PositionController,
    TrajectoryController,
    VelocityController,
)
from benchmarks.watchdog import stand_ins
from embodied_kv.control.safety_state_machine import STATES
from embodied_kv.msg import ControlState
from embodied_kv.nodes.common import qos
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.serving.websocket import codec

SPEED = 1.0  # rad/s, at which the first joint of the arm moves
HEARD = 5.0  # s for a new state to be published
PATIENCE = 120.0  # s for a process to start on a busy machine, and for an answer
CAMERAS = 20.0  # images per second
SIDE = 64  # pixels
CONTRACTS = Path(embodied_kv.__file__).parent / 'robots' / 'contracts'
TRANSITIONS = {
    'deactivate': Transition.TRANSITION_DEACTIVATE,
    'activate': Transition.TRANSITION_ACTIVATE,
}

Policy = Callable[[NDArray[np.float64]], NDArray[np.float64]]


@dataclass(frozen=True)
class Kind:
    """An arm with a controller.

    Args:
        name: Name of the kind.
        robot: The shipped contract.
        controller: The simulated controller of the arm.
        start: Positions (rad) of the arm at the start.
        output: Changes of the arm's output in the contract.
    """

    name: str
    robot: str
    controller: type[Controller]
    start: tuple[float, ...]
    output: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_velocity(self) -> bool:
        """Whether the controller takes velocities."""
        return self.controller is VelocityController

    def contract(self) -> dict:
        """Return the contract, as of YAML: its actions are absolute."""
        contract = yaml.safe_load((CONTRACTS / f'{self.robot}.yaml').read_text())
        arm = contract['actions']['action'][0]
        arm['relative'] = False
        arm['channel'].update(self.output)
        return contract

    def steady(self, robot: Embodiment) -> Policy:
        """Return a policy that moves the first joint of the arm at SPEED, from where it is."""
        contract = robot.contract
        moments = np.arange(contract.chunk_size)[:, None] * contract.dt
        first = np.eye(len(robot.axes))[0]
        if self.is_velocity:
            chunk = robot.actions.policy((moments >= 0) * SPEED * first)
            return lambda state: chunk
        return lambda state: state + moments * SPEED * first

    def scheduled(self, robot: Embodiment) -> Policy:
        """Return a policy with the same motion by the clock, wherever the arm is."""
        steady, begin = self.steady(robot), []

        def policy(state: NDArray[np.float64]) -> NDArray[np.float64]:
            now = time.monotonic()
            begin.append((now, state))
            since, first = begin[0]
            passed = 0.0 if self.is_velocity else (now - since) * SPEED
            return steady(first) + passed * np.eye(len(state))[0]

        return policy

    def degrees(self, robot: Embodiment) -> Policy:
        """Return the same policy as one whose actions of the arm are in degrees."""
        steady, arm = self.steady(robot), np.arange(len(robot.axes)) < len(self.start)
        return lambda state: np.where(arm, np.degrees(steady(state)), steady(state))


UR_START = (-3.0, -1.57, 1.57, -1.57, -1.57, 0.0)
MULTI_ARRAY = 'std_msgs/msg/Float64MultiArray'
JTC = Kind('JTC', 'ur5e', TrajectoryController, UR_START)
POSITIONS = Kind(
    'positions',
    'ur5e',
    PositionController,
    UR_START,
    {'topic': 'forward_position_controller/commands', 'type': MULTI_ARRAY},
)
VELOCITIES = Kind(
    'velocities', 'franka', VelocityController, (-2.5, -0.5, 0.0, -2.0, 0.0, 1.5, 0.7)
)
KINDS = (JTC, POSITIONS, VELOCITIES)


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set environment variables of this process, until the end."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def isolated() -> Iterator[None]:
    """Start ROS in a domain of this process, on this machine."""
    domain = str(1 + os.getpid() % 100)
    local = environment(ROS_DOMAIN_ID=domain, ROS_AUTOMATIC_DISCOVERY_RANGE='LOCALHOST')
    with local, stand_ins.ros():
        yield


class PolicyServer:
    """Answers each observation with a chunk, over the websocket protocol of openpi.

    Attributes:
        policy: Takes the state of a request and returns a chunk [n, actions].
        asked: Number of requests.
    """

    def __init__(self, policy: Policy, state: Sequence[str]) -> None:
        self.policy, self.asked, self._state = policy, 0, state
        options = dict(compression=None, max_size=None, ping_interval=None)
        self._workers = Workers()
        self._server = serve(self._workers.watched(self._answer), '127.0.0.1', 0, **options)
        self.address = f'ws://127.0.0.1:{self._server.socket.getsockname()[1]}'
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Accept no more connections. Raises what an answer raised."""
        self._server.shutdown()
        self._workers.check()

    def _answer(self, connection: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            connection.send(codec.pack({}))
            for message in connection:
                self.asked += 1
                request = codec.unpack(message)
                state = np.concatenate([request[key] for key in self._state])
                actions = self.policy(state).astype(np.float32)
                timing = {'infer_ms': 1.0}
                connection.send(codec.pack({'actions': actions, 'server_timing': timing}))


class World:
    """The robot process with everything around it, until the end of the context.

    Args:
        kind: The arm.
        policy: Returns a policy for the robot; default: one that moves at SPEED.
        parameters: Parameters of the action node in addition.
        topic: Topic of the simulated controller, where it is not that of the contract.

    Attributes:
        arm: The joints of the arm.
        began: The moment (s, CLOCK_MONOTONIC) of the fault.
        since: The moment from which `motion` counts.
    """

    def __init__(
        self,
        kind: Kind,
        policy: Callable[[Embodiment], Policy] | None = None,
        parameters: Mapping[str, object] | None = None,
        topic: str = '',
    ) -> None:
        self.kind, self.began, self.since = kind, 0.0, 0.0
        self.cameras = True
        self.states: list[tuple[float, ControlState]] = []  # with the moment of receipt
        self._policy, self._parameters, self._topic = policy, parameters or {}, topic
        self._stack = ExitStack()

    def __enter__(self) -> World:
        with self._stack:
            self._start()
            self._wait_until_active()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    # ------------------------------------------------------------------ start

    def _start(self) -> None:
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        contract = self._folder / 'contract.yaml'
        contract.write_text(yaml.safe_dump(self.kind.contract(), sort_keys=False))
        self.robot = Embodiment.load(str(contract))
        self.namespace = f'/safety_{uuid.uuid4().hex[:8]}'
        self._new_policy = partial(self._policy or self.kind.steady, self.robot)
        self.server = PolicyServer(self._new_policy(), list(self.robot.contract.clients.state))
        self._stack.callback(self.server.close)
        self._build_plant()
        self._build_node()
        self._start_processes(contract)

    def _build_plant(self) -> None:
        node = rclpy.create_node('controllers', namespace=self.namespace)
        output, gripper = self.robot.outputs
        measured, size = self.robot.contract.measured, len(self.kind.start)
        topic = self._topic or output.topic
        controller = self.kind.controller(node, topic, output.axes, self.kind.start)
        self.arm = Joints(node, measured[output.axes[0]], output.axes, self.kind.start, controller)
        hand = TrajectoryController(node, gripper.topic, gripper.axes, [0.1])
        hand = Joints(node, measured[gripper.axes[0]], gripper.axes, [0.1], hand)
        limits = self.robot.contract.limits
        self._limits = [limits[axis].velocity for axis in output.axes[:size]]
        self.acceleration = limits[output.axes[0]].acceleration
        self.plant = Plant(node, [self.arm, hand])
        self._stack.callback(self.plant.close)

    def _build_node(self) -> None:
        self.node = node = rclpy.create_node('world', namespace=self.namespace)
        self._nodes = [node]
        self._instruction = node.create_publisher(String, 'instruction', qos.INSTRUCTION)
        node.create_subscription(ControlState, 'control/state', self._on_state, qos.STATUS)
        kinds = dict(arm=SetBool, stop=Trigger, reset=Trigger, takeover=SetBool)
        self._clients = {
            name: node.create_client(kind, f'control/{name}') for name, kind in kinds.items()
        }
        self._lifecycle = node.create_client(ChangeState, 'action/change_state')
        self._build_cameras(node)
        self._executor = SingleThreadedExecutor(context=node.context)
        self._executor.add_node(node)
        self._over = False
        thread = threading.Thread(target=self._spin, name='world', daemon=True)
        thread.start()
        self._stack.callback(self._end_node, thread)

    def _on_state(self, message: ControlState) -> None:
        self.states.append((time.monotonic(), message))

    def _build_cameras(self, node: Node) -> None:
        observations = self.kind.contract()['observations'].values()
        topics = [of['channel']['topic'] for of in observations if isinstance(of, dict)]
        publishers = [node.create_publisher(Image, topic, qos.SENSOR) for topic in topics]
        image = Image(height=SIDE, width=SIDE, encoding='rgb8', step=3 * SIDE)
        image.data = bytes(3 * SIDE * SIDE)

        def publish() -> None:
            if self.cameras:
                image.header.stamp = node.get_clock().now().to_msg()
                for publisher in publishers:
                    publisher.publish(image)

        node.create_timer(1 / CAMERAS, publish)

    def _start_processes(self, contract: Path) -> None:
        common = dict(
            contract=str(contract),
            preset='',
            checkpoint='',
            control_frequency=10.0,
            autostart=True,
            server=dict(address=self.server.address),
        )
        parameters = {
            '/**': {'ros__parameters': common},
            '/**/action': {'ros__parameters': dict(armed=False, **self._parameters)},
        }
        file = self._folder / 'parameters.yaml'
        file.write_text(yaml.safe_dump(parameters))
        folder = str(self._folder)
        with environment(HOME=folder, TMPDIR=folder, ROS_LOG_DIR=f'{folder}/log'):
            self.watchdog = None
            if self.kind.is_velocity:
                self.watchdog = stand_ins.watchdog_process(self.namespace, str(contract))
                self._stack.callback(self.watchdog.close)
            words = ['--ros-args', '--params-file', str(file), '-r', f'__ns:={self.namespace}']
            self.process = stand_ins.Process('embodied_kv.nodes.remote.robot', *words)
            self._stack.callback(self._end_process)

    def _wait_until_active(self) -> None:
        def active() -> bool:
            heard = self._instruction.get_subscription_count() >= 2
            return heard and bool(self.states) and 'not active' not in self.state[1]

        if not self.wait(active):
            raise BenchmarkError(f'the robot process is not active: {self.process.text[-2000:]}')

    # ------------------------------------------------------------------ end

    def _spin(self) -> None:
        while not self._over:
            self._executor.spin_once(timeout_sec=0.1)

    def _end_node(self, thread: threading.Thread) -> None:
        self._over = True
        thread.join()
        self._executor.shutdown()
        for node in self._nodes:
            node.destroy_node()

    def _end_process(self) -> None:
        """End the process by SIGINT, so that its middleware cleans up; kill it after 10 s."""
        self.process.signal(signal.SIGCONT)
        self.process.signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10.0)
        self.process.close()

    # ------------------------------------------------------------------ an operator

    def call(self, name: str, data: bool = True) -> tuple[bool, str]:
        """Call the service control/NAME and return success and message.

        Raises:
            BenchmarkError: There was no answer.
        """
        client = self._clients[name]
        request = client.srv_type.Request()
        if isinstance(request, SetBool.Request):
            request.data = data
        response = self._answer(client, request)
        return response.success, response.message

    def change(self, transition: str) -> bool:
        """Request a transition of the action node, and return its success."""
        request = ChangeState.Request()
        request.transition.id = TRANSITIONS[transition]
        return self._answer(self._lifecycle, request).success

    def _answer(self, client: object, request: object) -> object:
        if not client.wait_for_service(timeout_sec=PATIENCE):
            raise BenchmarkError(f'service {client.srv_name} is missing')
        future = client.call_async(request)
        if not self.wait(future.done, every=0.001):
            raise BenchmarkError(f'service {client.srv_name} did not answer')
        return future.result()

    def tell(self, instruction: str) -> None:
        """Publish an instruction."""
        self._instruction.publish(String(data=instruction))

    def arm_and_tell(self, seconds: float = PATIENCE) -> tuple[bool, str]:
        """Arm, trying again while it is refused, then give an instruction."""
        end, armed = time.monotonic() + seconds, self.call('arm')
        while not armed[0] and time.monotonic() < end:
            time.sleep(0.1)
            armed = self.call('arm')
        if armed[0]:
            self.tell('move the first joint')
        return armed

    def act(self) -> World:
        """Arm, give an instruction, and wait until the arm moves steadily.

        A busy machine may interrupt the commands, which disarms the arm; it is then armed again.

        Raises:
            BenchmarkError: The arm does not move.
        """
        end, armed = time.monotonic() + PATIENCE, (False, 'not armed yet')
        while time.monotonic() < end:
            self.server.policy = self._new_policy()  # a schedule begins with the motion
            armed = self.arm_and_tell()
            if armed[0] and self.wait(lambda: self.state[0] == 'armed', HEARD) and self._starts():
                self.mark()
                return self
        raise BenchmarkError(f'the arm does not move: {armed}, {self.state}')

    def _starts(self) -> bool:
        """Return whether the armed arm moves steadily before it is disarmed."""
        begin = self.arm.position[0]

        def cruises() -> bool:
            is_fast = abs(self.speed() - SPEED) < 0.2 * SPEED
            return is_fast and self.arm.position[0] > begin + 0.3

        return self.wait(lambda: cruises() or self.state[0] != 'armed') and cruises()

    def publish_zeros(self) -> None:
        """Let another node publish zeros as joint states of the arm, 100 times a second."""
        node = rclpy.create_node('joint_state_publisher', namespace=self.namespace)
        topic = self.robot.contract.measured[self.arm.names[0]]
        publisher = node.create_publisher(JointState, topic, 10)
        message = JointState(name=self.arm.names, position=[0.0] * len(self.arm.names))

        def publish() -> None:
            message.header.stamp = node.get_clock().now().to_msg()
            publisher.publish(message)

        node.create_timer(0.01, publish)
        self._nodes.append(node)
        self._executor.add_node(node)

    # ------------------------------------------------------------------ measurements

    def mark(self) -> None:
        """Set the moment of the fault to now."""
        self.began = self.since = time.monotonic()

    def count(self) -> None:
        """Measure `motion` from now on: the fault is over, and the arm may jump."""
        self.since = time.monotonic()

    def reported(self) -> float | None:
        """Return the time (s) from the fault until the state was not armed; None if it is."""
        later = [(moment, of) for moment, of in self.states if moment >= self.began]
        left = [moment for moment, of in later if of.state != ControlState.ARMED]
        return left[0] - self.began if left else None

    def motion(self) -> Motion:
        """Return how the arm has moved since the mark."""
        return self.arm.motion(self.since, self._limits)

    def speed(self) -> float:
        """Return the present speed (rad/s) of the fastest joint of the arm."""
        return self.arm.speed()

    @property
    def state(self) -> tuple[str, str]:
        """Return the newest state of control/state, and its reason."""
        if self.has_ended:
            return 'process ended', ''
        _, newest = self.states[-1]
        return STATES[newest.state], newest.reason

    @property
    def has_ended(self) -> bool:
        """Return whether the robot process has ended."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(0.0)
            return True
        return False

    def wait(
        self, happened: Callable[[], bool], seconds: float = PATIENCE, every: float = 0.01
    ) -> bool:
        """Return whether something happened within so many seconds."""
        end = time.monotonic() + seconds
        while not happened() and time.monotonic() < end:
            time.sleep(every)
        return happened()
