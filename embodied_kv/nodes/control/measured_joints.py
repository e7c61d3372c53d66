"""Where the joints that are moved are now, by what their drivers say.

Knows topics and the robot's contract. Does not know what a position is needed for.
"""

from __future__ import annotations

import numpy as np

from embodied_kv.control.command import Measured
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.observation.clock import WorldClock
from embodied_kv.nodes.observation.description import JointInput
from embodied_kv.nodes.observation.joint_merger import StateUnknown
from embodied_kv.nodes.observation.joint_states import JointStates

WHILE = 200_000_000  # ns over which a velocity is measured


class MeasuredJoints:
    """Subscribes for a node, until its cleanup. max_age: s that a position is worth."""

    def __init__(self, node: SuiteNode, max_age: float) -> None:
        self._clock = WorldClock(node.get_clock())
        robot = node.embodiment
        topics: dict[str, list[str]] = {}
        for joint in robot.joints:
            topics.setdefault(robot.contract.measured[joint], []).append(joint)
        inputs = [JointInput(topic, tuple(joints)) for topic, joints in topics.items()]
        self._states = JointStates(node, inputs, max_age)
        self._places = [robot.axes.index(joint) for joint in self._states.names]
        self._size = len(robot.axes)

    def now(self) -> Measured | None:
        """In the order of an action, on the world's clock; None while a joint is not known.

        NaN for what is no joint.
        """
        try:
            sample = self._states.at(self._clock.stamp)
        except StateUnknown:
            return None
        position, velocity = np.full((2, self._size), np.nan)
        position[self._places] = sample.positions
        velocity[self._places] = self._states.rates(sample.stamp, WHILE)
        return Measured(position, self._clock.moment(sample.stamp), velocity)
