"""Measure the positions of the commanded joints from the joint states of their drivers."""

from __future__ import annotations

import numpy as np

from embodied_kv.control.command import Measured
from embodied_kv.control.limits import Limits
from embodied_kv.control.limits_from_contract import linear_joints
from embodied_kv.control.plausibility import bounds_of
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.observation.clock import StepDetector, WorldClock
from embodied_kv.nodes.observation.joint_merger import JointInput
from embodied_kv.nodes.observation.joint_states import JointStates

WHILE = 200_000_000  # ns over which the velocity is measured
RECENT = 50_000_000  # ns over which the recent velocity is measured
COLLECT = 0.2  # s between two reads of the queued messages while the arm is idle


class MeasuredJoints:
    """Plausible joint states of a robot, until the cleanup of the node.

    Args:
        node: The node that subscribes.
        max_age: Largest age (s) of a position.
        limits: Limits in the order of `node.embodiment.axes`, which positions are checked against.
    """

    def __init__(self, node: SuiteNode, max_age: float, limits: Limits) -> None:
        self._clock = WorldClock(node.get_clock())
        self._steps = StepDetector(self._clock)
        robot = node.embodiment
        topics: dict[str, list[str]] = {}
        for joint in robot.joints:
            topics.setdefault(robot.contract.measured[joint], []).append(joint)
        inputs = [JointInput(topic, tuple(joints)) for topic, joints in topics.items()]
        bounds = bounds_of(limits, linear_joints(robot))
        self._states = JointStates(node, inputs, max_age, bounds, age_name='max_joint_state_age')
        self._states.clips = True
        self._places = [robot.axes.index(joint) for joint in self._states.names]
        self._size = len(robot.axes)
        node.every(COLLECT, self._states.collect)

    def restart(self) -> None:
        """Forget all samples, because the clock was set back."""
        self._states.restart()

    def now(self) -> Measured | None:
        """Return the plausible positions in the order of an action; None if none is known.

        The result has the moment of the oldest position, on the world's clock. Positions of
        continuous joints are unwrapped. An output that is no joint, and a joint that is missing,
        old or implausible, is NaN: `problem` returns why. Stamps from before a step of the system
        clock have an unknown age, so that none is known until the next message.
        """
        if self._steps.has_stepped():
            self._states.restart(turns=True)
            return None
        sample = self._states.known(self._clock.stamp)
        if self._places and np.isnan(sample.positions).all():
            return None
        position, velocity = np.full((2, self._size), np.nan)
        together = self._states.known(sample.stamp).positions  # of one moment, as the velocities
        position[self._places] = np.where(np.isnan(sample.positions), np.nan, together)
        velocity[self._places] = self._states.rates(sample.stamp, WHILE)
        recent = np.full(self._size, np.nan)
        recent[self._places] = self._states.rates(sample.stamp, RECENT)
        return Measured(position, self._clock.moment(sample.stamp), velocity, recent)

    def clocks_agree(self) -> bool:
        """Return whether the drivers stamp by the clock of this machine."""
        return self._states.clocks_agree()

    def problem(self) -> str:
        """Return why a joint is missing, old or implausible; '' if every joint is plausible."""
        return self._states.problem(self._clock.stamp)
