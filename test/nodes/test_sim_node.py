"""The simulated robot as a process: messages of one moment, trajectories, resets."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import rclpy
from builtin_interfaces.msg import Duration
from geometry_msgs.msg import PoseArray
from rclpy.executors import SingleThreadedExecutor
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Header
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from embodied_kv.demo.nodes.truth import TrueMoments
from embodied_kv.demo.sim.table_memory import true_table
from embodied_kv.demo.sim.tabletop import JOINTS
from embodied_kv.demo.sim.tasks import task_scene
from embodied_kv.nodes.common import qos

CAMERAS = ('front', 'wrist')
PATIENCE = 60.0  # s


class Outside:
    """Starts and ends a sim process, and receives its messages."""

    def __init__(self, *arguments):
        namespace = '/test_sim'
        self.process = subprocess.Popen(
            [sys.executable, '-m', 'embodied_kv.demo.nodes.node', '--ros-args']
            + ['-r', f'__ns:={namespace}', *arguments]
        )
        self.context = rclpy.Context()
        rclpy.init(context=self.context)
        self.node = rclpy.create_node('outside', namespace=namespace, context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.images = {name: {} for name in CAMERAS}
        self.joints, self.objects, self.held = {}, {}, {}
        self.clocks = []
        for name in CAMERAS:
            self.node.create_subscription(
                Image, f'camera/{name}/image', self.keep(self.images[name]), qos.SENSOR
            )
        self.node.create_subscription(JointState, 'joint_states', self.keep(self.joints), 10)
        for kind, topic, messages in (
            (PoseArray, 'objects', self.objects),
            (Header, 'held', self.held),
        ):
            self.node.create_subscription(kind, topic, self.keep(messages), qos.JOINTS)
        self.node.create_subscription(Clock, '/clock', self.clocks.append, 10)
        self.commands = self.node.create_publisher(JointTrajectory, 'joint_trajectory', 1)

    @staticmethod
    def keep(messages):
        def heard(message):
            stamp = getattr(message, 'header', message).stamp
            messages[stamp.sec, stamp.nanosec] = message

        return heard

    def until(self, done):
        end = time.monotonic() + PATIENCE
        while not done():
            assert self.process.poll() is None, 'the sim has ended'
            assert time.monotonic() < end, 'nothing came'
            self.executor.spin_once(timeout_sec=0.1)

    def state(self):
        """Return the next joint positions [7]."""
        before = len(self.joints)
        self.until(lambda: len(self.joints) > before)
        return np.array(list(self.joints.values())[-1].position)

    def send(self, positions, names=JOINTS):
        points = [
            JointTrajectoryPoint(
                positions=[float(p) for p in position],
                time_from_start=Duration(nanosec=200_000_000),
            )
            for position in positions
        ]
        self.commands.publish(JointTrajectory(joint_names=names, points=points))

    def end(self, number):
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def close(self):
        self.executor.shutdown()
        self.node.destroy_node()  # before its peer dies: afterwards Fast DDS may crash
        rclpy.shutdown(context=self.context)
        self.process.kill()
        self.process.wait()


@pytest.fixture
def start():
    """Return a function that starts a sim with arguments and receives its messages."""
    started = []

    def start(*arguments):
        started.append(Outside(*arguments))
        return started[-1]

    yield start
    for outside in started:
        outside.close()


def test_pictures_and_joints_of_a_moment_carry_one_stamp(start):
    outside = start('-p', 'image_size:=48')
    everything = (*outside.images.values(), outside.joints)
    outside.until(lambda: set.intersection(*(set(messages) for messages in everything)))
    stamp = min(set.intersection(*(set(messages) for messages in everything)))
    for name, messages in outside.images.items():
        image = messages[stamp]
        assert (image.height, image.width, image.encoding, image.step) == (48, 48, 'rgb8', 144)
        assert image.header.frame_id == f'camera_{name}'
        assert np.ptp(image.data) > 50
    assert tuple(outside.joints[stamp].name) == JOINTS
    assert outside.end(signal.SIGTERM) == 0


def true_moment(outside, config):
    """Return a true moment, assembled from messages. config: the ranges of the scenes."""
    everything = (*outside.images.values(), outside.joints, outside.objects, outside.held)
    outside.until(lambda: set.intersection(*(set(messages) for messages in everything)))
    stamp = min(set.intersection(*(set(messages) for messages in everything)))
    moments = TrueMoments(config)
    moments.add('joints', outside.joints[stamp])
    moments.add('held', outside.held[stamp])
    return moments.add('objects', outside.objects[stamp])


def test_the_truth_carries_the_stamp_of_the_pictures_and_names_its_scene(start):
    outside = start('-p', 'seed:=5', '-p', 'image_size:=48')
    moment = true_moment(outside, task_scene('put'))
    assert moment.scene == 5
    assert moment.truth.held == ''
    assert all(abs(thing.position[2]) < 0.1 for thing in moment.truth.things)


def test_a_crowded_table_has_two_places_and_things_put_away(start):
    outside = start('-p', 'crowded:=true')
    table = true_table(true_moment(outside, task_scene(crowded=True)).truth)
    assert len(table.places) == 2
    assert any(table.inside(place) for place in table.places)


def test_without_the_truth_there_are_pictures_alone(start):
    outside = start('-p', 'truth:=false')
    outside.until(lambda: len(outside.images['front']) > 3 and len(outside.joints) > 3)
    topics = {name for name, _ in outside.node.get_topic_names_and_types()}
    publishers = [outside.node.count_publishers(f'/test_sim/{t}') for t in ('objects', 'held')]
    assert '/test_sim/joint_states' in topics and publishers == [0, 0]


def test_a_trajectory_is_executed_by_joint_name_and_a_bad_one_is_not(start):
    outside = start()
    goal = outside.state() + [0.3, -0.2, 0.1, 0.0, 0.1, 0.2, -0.01]
    sent = -np.inf

    def is_there():
        """Return whether the goal is reached; send the trajectory once a second.

        A trajectory is lost if the sim has not discovered the publisher yet.
        """
        nonlocal sent
        if time.monotonic() - sent > 1.0:
            sent = time.monotonic()
            outside.send([goal[::-1]], JOINTS[::-1])
        return np.abs(outside.state() - goal).max() < 0.02

    outside.until(is_there)
    for positions, names in (
        ([goal + 1], [f'other_{name}' for name in JOINTS]),
        ([goal[:3]], JOINTS),
        ([goal + np.nan], JOINTS),
    ):
        outside.send(positions, names)
        for _ in range(10):
            assert np.abs(outside.state() - goal).max() < 0.02
    assert outside.end(signal.SIGINT) == 0


def test_a_refused_trajectory_is_one_short_line_of_the_log(start, capfd):
    outside = start()
    outside.until(lambda: outside.commands.get_subscription_count())
    hostile = 'arm\n[INFO] [1.0] [sim]: forged\x1b[2K' * 1_000
    outside.send([np.zeros(len(JOINTS))], [hostile] * len(JOINTS))
    said = []

    def refused():
        said.append(capfd.readouterr().err)
        return 'trajectory rejected' in ''.join(said)

    outside.until(refused)
    lines = ''.join(said).splitlines()
    assert all(line.isprintable() and len(line) < 600 for line in lines)
    assert not any(line.startswith('[INFO] [1.0]') for line in lines)
    assert outside.end(signal.SIGTERM) == 0


def test_reset_draws_the_next_scene_and_forgets_the_trajectory(start):
    outside = start('-p', 'seed:=5')
    begin = outside.state()
    outside.until(lambda: outside.commands.get_subscription_count())
    outside.send([begin + [1, 0, 0, 0, 0, 0, 0]])
    outside.until(lambda: np.abs(outside.state() - begin).max() > 0.5)
    client = outside.node.create_client(Trigger, 'sim/reset')
    outside.until(client.service_is_ready)
    answer = client.call_async(Trigger.Request())
    outside.until(answer.done)
    assert answer.result().success
    assert answer.result().message.startswith('scene 6: ')
    outside.until(lambda: np.abs(outside.state() - begin).max() < 0.4)
    here = outside.state()
    outside.send([here + [1, 0, 0, 0, 0, 0, 0]])  # ignored, because it follows the reset too soon
    for _ in range(10):
        assert np.abs(outside.state() - here).max() < 0.2


def test_the_clock_it_publishes_is_the_time_of_its_stamps(start):
    outside = start('-p', 'publish_clock:=true')
    outside.until(lambda: len(outside.clocks) >= 5 and outside.joints)
    times = [(message.clock.sec, message.clock.nanosec) for message in outside.clocks]
    assert times == sorted(set(times))
    outside.until(lambda: set(times) & set(outside.joints))


@pytest.mark.parametrize(
    ('parameter', 'problem'),
    [('rate:=1000.0', 'parameter rate'), ('family:=juggle', 'parameter family must be')],
)
def test_a_parameter_out_of_range_ends_it_with_the_reason(parameter, problem):
    ended = subprocess.run(
        [sys.executable, '-m', 'embodied_kv.demo.nodes.node', '--ros-args', '-p', parameter],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert ended.returncode == 1
    assert problem in ended.stderr
