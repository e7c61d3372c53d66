"""The connections between a fleet's server and its robots: topics that come and go with them.

Knows the ROS graph. A robot is a namespace in which somebody publishes requests; who it is, the
topic says, never the message. When the last publisher is gone, so is the robot. Several publishers
of one robot retire each other's tasks, so they are reported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import ExitStack
from functools import partial

from std_msgs.msg import String

from embodied_kv.msg import FleetAnswer, FleetRequest
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.common.publishers import SinglePublishers
from embodied_kv.nodes.fleet.messages import ANSWER, ANSWERS, FINISHED, REQUEST, REQUESTS

REQUEST_TYPE = 'embodied_kv/msg/FleetRequest'


class Connections:
    """One connection to every robot that is served.

    robots: their names; empty serves all that there are. on_request, on_finished: take its
    messages; on_joined, on_left: its name; all on the executor's thread. publishers: watches the
    topics of each robot for a second publisher.
    """

    def __init__(
        self,
        node: SuiteNode,
        robots: Collection[str],
        on_request: Callable[[str, FleetRequest], None],
        on_finished: Callable[[str, str], None],
        on_joined: Callable[[str], None],
        on_left: Callable[[str], None],
    ) -> None:
        self._node, self._robots = node, frozenset(robots)
        self._on_request, self._on_finished = on_request, on_finished
        self._on_joined, self._on_left = on_joined, on_left
        self._lock = threading.Lock()  # over the publishers: answers leave from another thread
        self._answers: dict[str, Callable[[FleetAnswer], None]] = {}
        self._closing: dict[str, ExitStack] = {}
        self.publishers = SinglePublishers(
            node, 'stop all nodes but one: the requests of one replace those of the other'
        )

    @property
    def robots(self) -> list[str]:
        """Who is connected."""
        return sorted(self._closing)

    def update(self) -> None:
        """Connect robots that have come, disconnect those that have gone."""
        there = set()
        for topic, kinds in self._node.get_topic_names_and_types():
            if REQUEST_TYPE in kinds and topic.endswith(f'/{REQUEST}'):
                robot = topic.removesuffix(REQUEST).rstrip('/') or '/'
                if self._node.count_publishers(topic) and self._served(robot):
                    there.add(robot)
        for robot in there - self._closing.keys():
            self._open(robot)
            self._on_joined(robot)
        for robot in self._closing.keys() - there:
            self._close(robot)
            self._on_left(robot)
        self.publishers.look(
            f'{robot.rstrip("/")}/{topic}'
            for robot in self.robots
            for topic in (REQUEST, FINISHED)
        )

    def send(self, robot: str, answer: FleetAnswer) -> None:
        """To this robot alone; to nobody if it has gone. From any thread."""
        with self._lock:
            publish = self._answers.get(robot)
            if publish is not None:
                publish(answer)

    def close(self) -> None:
        """Of all robots."""
        for robot in self.robots:
            self._close(robot)

    def _served(self, robot: str) -> bool:
        return not self._robots or robot in self._robots

    def _open(self, robot: str) -> None:
        node, prefix, closing = self._node, robot.rstrip('/'), ExitStack()
        answers = node.create_publisher(FleetAnswer, f'{prefix}/{ANSWER}', ANSWERS)
        closing.callback(node.destroy_publisher, answers)
        for kind, topic, heard in (
            (FleetRequest, REQUEST, partial(self._on_request, robot)),
            (String, FINISHED, lambda message: self._on_finished(robot, message.data)),
        ):
            subscription = node.create_subscription(kind, f'{prefix}/{topic}', heard, REQUESTS)
            closing.callback(node.destroy_subscription, subscription)
        self._closing[robot] = closing
        with self._lock:
            self._answers[robot] = answers.publish

    def _close(self, robot: str) -> None:
        with self._lock:
            del self._answers[robot]
        self._closing.pop(robot).close()
