"""Fixtures: a stand-in robot that hosts a suite in the test process.

Each test process uses a ROS domain of its own.
"""

import itertools
import os
import time

import numpy as np
import own_folder  # noqa: F401 (sets the temporary folder)
import pytest
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory

from embodied_kv.config import TINY
from embodied_kv.msg import ActionChunk, KvHandle, TextDelta
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.robots.embodiment import Embodiment

os.environ['ROS_DOMAIN_ID'] = str(1 + os.getpid() % 100)
os.environ.setdefault('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')

JOINTS = list(Embodiment.load('tabletop').axes)
PERIOD = 0.2  # s
STANDS = 20_000_000  # ns between the two joint states that are published for each image
OVERRIDES = {
    'armed': True,
    'resume_within': 3600.0,  # an arm that waits on a busy machine is not disarmed
    'contract': 'tabletop',
    'preset': 'tiny',
    'checkpoint': 'random',
    'control_frequency': 1 / PERIOD,
    'camera_timeout': 2 * PERIOD,
    'instruction': 'reach',
    'max_tokens': 8,
    'engine.decode_tokens': 48,
}
numbers = itertools.count()


class Robot:
    """A stand-in robot: publishes images and joint states, and records the messages of a suite."""

    def __init__(self, namespace=None):
        self.namespace = namespace or f'/robot_{next(numbers)}'
        self.node = rclpy.create_node('robot', namespace=self.namespace)
        self.executor = SingleThreadedExecutor()
        self.executor.add_node(self.node)
        self.suite = []
        self.follows = True  # whether the arm executes the trajectories that it receives
        self._motion = 0, np.zeros(1), np.array([[*[0.1] * 6, 0.04]])  # received (ns), s, rad
        self.handles, self.chunks, self.trajectories, self.texts = [], [], [], []
        make = self.node.create_publisher
        self.cameras = {v: make(Image, f'camera/{v}/image', qos.SENSOR) for v in TINY.views}
        self.joints = make(JointState, 'joint_states', qos.SENSOR)
        self.instruction = make(String, 'instruction', qos.INSTRUCTION)
        self.handle = make(KvHandle, 'kv_handle', qos.HANDLE)
        for kind, topic, heard in (
            (KvHandle, 'kv_handle', self.handles),
            (ActionChunk, 'action_chunk', self.chunks),
            (JointTrajectory, 'joint_trajectory', self.trajectories),
            (TextDelta, 'language/text', self.texts),
        ):
            self.node.create_subscription(kind, topic, heard.append, 100)
        self.node.create_subscription(JointTrajectory, 'joint_trajectory', self._follow, 100)

    def _follow(self, message):
        """Execute a trajectory from the present position, as a controller does."""
        spans = [p.time_from_start.sec + p.time_from_start.nanosec * 1e-9 for p in message.points]
        if not self.follows:
            return
        now = self.now()
        order = [message.joint_names.index(joint) for joint in JOINTS]
        points = np.array([[p.positions[i] for i in order] for p in message.points])
        self._motion = now, np.array([0.0, *spans]), np.vstack([self.at(now), points])

    def at(self, stamp):
        """Return the positions [joints] of the arm at a stamp (ns)."""
        received, spans, points = self._motion
        since = (stamp - received) / 1e9
        return np.array([np.interp(since, spans, joint) for joint in points.T])

    def bring(self, kind, **options):
        """Return a new node of the suite, not configured.

        options: parameters by name, where `__` stands for a dot.
        """
        values = OVERRIDES | {name.replace('__', '.'): v for name, v in options.items()}
        overrides = [Parameter(name, value=value) for name, value in values.items()]
        node = kind(namespace=self.namespace, parameter_overrides=overrides)
        self.executor.add_node(node)
        self.suite.append(node)
        return node

    def up(self, *kinds, **options):
        """Configure and activate nodes of these kinds; return them, or the only one."""
        nodes = [self.bring(kind, **options) for kind in kinds]
        for node in reversed(nodes):
            assert node.trigger_configure().name == 'SUCCESS'
        for node in reversed(nodes):
            assert node.trigger_activate().name == 'SUCCESS'
        return nodes[0] if len(nodes) == 1 else nodes

    def now(self):
        """Return the time of the ROS clock (ns)."""
        return self.node.get_clock().now().nanoseconds

    def stamped(self, message, stamp=None):
        message.header.stamp.sec, message.header.stamp.nanosec = divmod(
            self.now() if stamp is None else stamp, 10**9
        )
        return message

    def picture(self, stamp=None, encoding='rgb8', height=28, width=28):
        channels = {'mono8': 1, '16UC1': 2, 'rgba8': 4, 'bgra8': 4}.get(encoding, 3)
        data = np.random.default_rng(0).integers(0, 256, height * width * channels, np.uint8)
        image = Image(height=height, width=width, encoding=encoding, step=width * channels)
        image.data = data.tobytes()
        return self.stamped(image, stamp)

    def show(self, stamp=None, views=TINY.views, positions=None, names=JOINTS, **picture):
        """Publish joint states, then an image of each view.

        positions: None for those of the arm.
        """
        stamp = self.now() if stamp is None else stamp
        if names:
            for moment in (stamp - STANDS, stamp):
                place = self.at(moment) if positions is None else positions
                if len(names) != len(JOINTS) and positions is None:
                    place = 0.1
                place = np.full(len(names), place)
                if names == JOINTS and np.isscalar(positions):
                    place[-1] = np.clip(place[-1], 0.0, 0.04)  # the gripper's limits
                state = JointState(name=names, position=place.tolist())
                self.joints.publish(self.stamped(state, moment))
        for view in views:
            self.cameras[view].publish(self.picture(stamp, **picture))

    def spin(self, seconds):
        """Spin all nodes for a time (s)."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.executor.spin_once(timeout_sec=0.01)

    def until(self, happened, show=True, timeout=120.0, **frame):
        """Spin all nodes, publishing frames, until `happened` returns true."""
        deadline, next_frame = time.monotonic() + timeout, 0.0
        while not happened():
            assert time.monotonic() < deadline, 'it did not happen'
            if show and time.monotonic() >= next_frame:
                next_frame = time.monotonic() + PERIOD / 2
                self.show(**frame)
            self.executor.spin_once(timeout_sec=0.01)

    def more(self, heard, count=2, **frame):
        """Spin all nodes until `count` more messages are received; return them."""
        before = len(heard)
        self.until(lambda: len(heard) >= before + count, **frame)
        return heard[before:]

    def call(self, kind, name, /, **fields):
        """Call a service and return its response."""
        client = self.node.create_client(kind, name)
        assert client.wait_for_service(60.0)
        future = client.call_async(kind.Request(**fields))
        self.until(future.done, show=False)
        self.node.destroy_client(client)
        return future.result()

    def ask(self, kind, name, /, **fields):
        """Call a service that changes nothing and return its response.

        The request is repeated, because the response of another process is lost if that process
        answers before it has discovered this client.
        """
        client = self.node.create_client(kind, name)
        assert client.wait_for_service(60.0)
        futures, next_one = [], 0.0

        def is_answered():
            nonlocal next_one
            if time.monotonic() >= next_one:
                next_one = time.monotonic() + 5.0
                futures.append(client.call_async(kind.Request(**fields)))
            return any(future.done() for future in futures)

        self.until(is_answered, show=False)
        self.node.destroy_client(client)
        return next(future.result() for future in futures if future.done())

    def close(self):
        for node in self.suite:
            node.end()
        self.executor.shutdown()
        self.node.destroy_node()


@pytest.fixture(scope='session')
def ros():
    rclpy.init()
    yield
    rclpy.try_shutdown()


def stand_ins():
    """Yield a function that makes stand-in robots, each in its own namespace."""
    made = []

    def make(*args):
        made.append(Robot(*args))
        return made[-1]

    yield make
    for stand_in in made:
        stand_in.close()
    EngineHost.close()


@pytest.fixture
def robots(ros):
    yield from stand_ins()


@pytest.fixture(scope='module')
def robots_of_module(ros):
    yield from stand_ins()


@pytest.fixture
def robot(robots):
    return robots()
