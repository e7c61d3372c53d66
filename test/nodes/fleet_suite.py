"""A fleet node, and robots of a fleet that are played by the test."""

import time

import numpy as np
from own_folder import loose_contract
from sensor_msgs.msg import JointState
from std_msgs.msg import String

from embodied_kv.config import TINY
from embodied_kv.fleet.protocol import LastExecution
from embodied_kv.msg import FleetAnswer, FleetRequest
from embodied_kv.nodes.fleet import messages
from embodied_kv.nodes.fleet.client_node import FleetClient
from embodied_kv.nodes.fleet.messages import ANSWER, ANSWERS, FINISHED, REQUEST, REQUESTS
from embodied_kv.nodes.fleet.server_node import Fleet
from embodied_kv.robots.embodiment import Embodiment

JOINTS = list(Embodiment.load('tabletop').axes)
PROFILE = """engine: test
sizes: [1, 2, 4]
seconds: [0.1, 0.11, 0.12]
chunk_bytes: 200
"""


class Asker:
    """A stand-in that asks by hand, and keeps what it hears."""

    def __init__(self, robot, seed=0):
        self.robot, self.node, self.namespace = robot, robot.node, robot.namespace
        self.seed, self.answers = seed, []
        self.requests = self.node.create_publisher(FleetRequest, REQUEST, REQUESTS)
        self.finished = self.node.create_publisher(String, FINISHED, REQUESTS)
        self.node.create_subscription(FleetAnswer, ANSWER, self.answers.append, ANSWERS)

    def request(
        self,
        round=0,
        task='a',
        horizon='static:3',
        ran=None,
        stamp=1_000_000_000,
        guide=None,
        **odd,
    ):
        """A request like any other; odd: fields of the observation that are not."""
        picture = self.robot.picture(stamp)
        pixels = np.random.default_rng(self.seed).integers(0, 256, len(picture.data), np.uint8)
        picture.data = pixels.tobytes()
        images = dict.fromkeys(TINY.views, picture)
        state = JointState(name=JOINTS, position=[0.01 * self.seed] * len(JOINTS))
        message = messages.request_message(
            task, round, horizon, ran, images, state, f'reach {self.seed}', stamp, guide, JOINTS
        )
        for name, value in odd.items():
            setattr(message.observation, name, value)
        return message

    def ask(self, *args, **kw):
        self.requests.publish(self.request(*args, **kw))

    def got(self, task='a'):
        """The chunks that were heard, by round."""
        return {
            a.round: a
            for a in self.answers
            if a.verdict == FleetAnswer.ANSWERED and a.task == task
        }

    def verdicts(self, verdict):
        return [a for a in self.answers if a.verdict == verdict]


def ran(round, start=0.0, end=0.3, remaining=0):
    return LastExecution(round, start, end, remaining)


class Fleets:
    """A fleet node and its robots, all on one executor. robots: makes stand-ins."""

    def __init__(self, robots, folder):
        self.robots, self.first, self.acting = robots, robots(), []
        path = folder / 'profile.yaml'
        path.write_text(PROFILE)
        self.profile, self.folder = str(path), str(folder / 'capsules')
        self.contract = loose_contract()

    def up(self, **options):
        options = {
            'contract': self.contract,
            'engine__robots': 4,
            'profile': self.profile,
            'execution_horizon': 'static:4',
            'folder': self.folder,
            'memory': False,
            'missions': False,
        } | options
        self.node = self.first.up(Fleet, **options)
        return self.node

    def join(self, seed=0, namespace=None):
        robot = Asker(self.robots(namespace), seed)
        robot.robot.executor.remove_node(robot.node)
        self.first.executor.add_node(robot.node)
        self.connected(robot)
        return robot

    def connected(self, robot):
        """Wait until robot and server hear each other."""
        count = robot.requests.get_subscription_count
        self.until(lambda: count() and robot.node.count_publishers(ANSWER))

    def until(self, happened, timeout=120.0):
        self.first.until(happened, show=False, timeout=timeout)

    @property
    def counts(self):
        return self.node._server.counts

    def act(self, namespace=None, **options):
        """A robot with cameras and an action node that asks this fleet."""
        robot = self.robots(namespace)
        robot.follows = False  # its arm is where it was, whatever it is sent
        given = {'contract': self.contract, 'execution_horizon': 'static:4'}
        robot.up(FleetClient, **given | options)
        for node in (robot.node, robot.suite[0]):
            robot.executor.remove_node(node)
            self.first.executor.add_node(node)
        self.acting.append(robot)
        return robot

    def live(self, happened, timeout=120.0, show=True):
        """Serve everybody, all that act seeing something, until it happened."""
        deadline, next_frame = time.monotonic() + timeout, 0.0
        while not happened():
            assert time.monotonic() < deadline, 'it did not happen'
            if show and time.monotonic() >= next_frame:
                next_frame = time.monotonic() + 0.1
                for robot in self.acting:
                    robot.show()
            self.first.executor.spin_once(timeout_sec=0.01)

    def call(self, robot, kind, name, /, **fields):
        """What a service in the robot's namespace answers."""
        client = robot.node.create_client(kind, name)
        self.live(client.service_is_ready)
        future = client.call_async(kind.Request(**fields))
        self.live(future.done)
        robot.node.destroy_client(client)
        return future.result()
