"""A node that serves many robots, each in the robot's own namespace.

Knows which robots there are, and what was created for each. One node for all of them, because what
a thread of rclpy does for a message grows with the nodes that it serves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from rclpy.callback_groups import CallbackGroup, MutuallyExclusiveCallbackGroup
from rclpy.executors import Executor
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile

from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.fleet.node_thread import NodeThread


class RobotsNode(SuiteNode):
    """Subclasses fill `join`. The callbacks of one robot come one after another.

    host: the fleet's. `join` and `leave` are called by the thread that serves the node.
    """

    on_engine = False

    def __init__(self, name: str, host: EngineHost, *own: type, **arguments: object) -> None:
        self._creating_for: CallbackGroup | None = None
        super().__init__(name, *own, **arguments)
        self._fleet_host = host
        self._closing: dict[str, ExitStack] = {}  # by robot

    def find_host(self) -> EngineHost:
        return self._fleet_host

    @property
    def ready(self) -> bool:
        """Whether it has what it needs; without, it says why and the fleet does without it."""
        return True

    @property
    def robots(self) -> list[str]:
        """Who is served."""
        return sorted(self._closing)

    @property
    def default_callback_group(self) -> CallbackGroup:
        """Of what is created now."""
        return self._creating_for or super().default_callback_group

    def publisher(self, kind: type, topic: str, profile: QoSProfile) -> Publisher:
        """As of any node; a robot's is not silenced, since one made late would never speak."""
        if self._creating_for is None:
            return super().publisher(kind, topic, profile)
        publisher = self.create_publisher(kind, topic, profile)
        self._release.callback(self.destroy_publisher, publisher)
        return publisher

    @contextmanager
    def joining(self, robot: str) -> Iterator[ExitStack]:
        """What is created within is the robot's, and goes with it. Its stack takes more."""
        node, self._release = self._release, ExitStack()
        self._creating_for = MutuallyExclusiveCallbackGroup()
        try:
            with self._release as undo:
                yield undo
                self._closing[robot] = undo.pop_all()
        finally:
            self._release, self._creating_for = node, None

    def join(self, robot: str) -> None:
        """A robot has come: create what is its own, within `joining`."""

    def leave(self, robot: str) -> None:
        """A robot has gone; one that never came changes nothing."""
        closing = self._closing.pop(robot, None)
        if closing is not None:
            closing.close()

    def stop(self) -> None:
        for robot in self.robots:
            self.leave(robot)


class RobotsThread(NodeThread):
    """The thread that serves such a node, which is configured; it is active as long."""

    def __init__(self, node: RobotsNode, executor: Executor) -> None:
        super().__init__(f'fleet {node.get_name()}', executor)
        self._node = node

    def start(self) -> None:
        self._node.trigger_activate()
        self.executor.add_node(self._node)
        super().start()

    def open(self, robot: str) -> None:
        """A robot has come."""
        self.put(partial(self._node.join, robot))

    def close(self, robot: str) -> None:
        """It has gone."""
        self.put(partial(self._node.leave, robot))

    def stop(self) -> None:
        """All have gone, and the thread ends."""
        super().stop()
        self._node.trigger_deactivate()
