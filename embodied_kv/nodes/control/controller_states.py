"""Read the states that joint trajectory controllers publish, and their speed scaling.

A controller of ros2_controllers publishes `control_msgs/msg/JointTrajectoryControllerState` as
`controller_state`, next to its command topic or action. The states are polled, because an executor
would spend more time on them than on all other topics. Without the package control_msgs nothing is
read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rclpy.subscription import Subscription
from std_msgs.msg import Float64

from embodied_kv.control.controller_reference import ControllerReference
from embodied_kv.control.limits import LimitError, Limits
from embodied_kv.control.limits_from_contract import (
    limits_from_contract,
    linear_joints,
    tracking_errors,
)
from embodied_kv.control.tracking import tolerances
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.common.polling import PolledGroup, queued
from embodied_kv.nodes.common.publishers import type_named
from embodied_kv.nodes.observation.clock import WorldClock
from embodied_kv.robots.channels import FOLLOW_TRAJECTORY, TRAJECTORY
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.mapping import Output

COMMANDS = {TRAJECTORY: 'joint_trajectory', FOLLOW_TRAJECTORY: 'follow_joint_trajectory'}
STATE = 'controller_state'
SPEED_SCALING = 'speed_scaling_state_broadcaster/speed_scaling'  # percent
MAX_SPEED_AGE = 1.0  # s for which a speed scaling is valid
EVERY = 0.2  # s between two polls while the arm stands
MISSING = (
    'controller_state of the trajectory controllers is not read, because control_msgs is not '
    'installed; install ros-${ROS_DISTRO}-control-msgs'
)


@dataclass(frozen=True)
class _Controller:
    output: Output
    states: Subscription
    reference: ControllerReference


class ControllerStates:
    """States of the trajectory controllers of a robot until cleanup. Thread-safe.

    Args:
        node: The action node, configured.
        outputs: The outputs of the robot. Outputs of other types are ignored, and those whose
            topic does not have the name of a joint_trajectory_controller's.
        limits: The limits of the robot; None: those in the contract. If the contract leaves them
            to a URDF, only the silence of a controller is then reported.
    """

    def __init__(
        self, node: SuiteNode, outputs: Sequence[Output], limits: Limits | None = None
    ) -> None:
        self._now, self._lock = WorldClock(node.get_clock()).now, Lock()
        self._controllers: list[_Controller] = []
        parts = [
            (output, node.resolve_topic_name(output.topic).rpartition('/'))
            for output in outputs
            if output.type in COMMANDS
        ]
        named = [(of, name) for of, (name, _, last) in parts if last == COMMANDS[of.type]]
        if not named:
            return
        self._kind = state_type()
        if self._kind is None:
            node.log_info(STATE, MISSING)
            return
        allowed = _allowed(node.embodiment, limits)
        for output, name in named:
            states = node.subscribe(
                self._kind, f'{name}/{STATE}', lambda _: None, qos.SENSOR, group=PolledGroup()
            )
            reference = ControllerReference(name, output.axes, allowed[list(output.index)])
            self._controllers.append(_Controller(output, states, reference))
        node.every(EVERY, self._poll)

    def send(self, position: NDArray[np.float64]) -> None:
        """Note the reference position [axes] of a moving arm, every few controller periods.

        Without these calls, only the silence of a controller is reported.
        """
        with self._lock:
            for controller in self._controllers:
                controller.reference.send(self._now(), position[list(controller.output.index)])

    def problem(self) -> str:
        """Return why a controller does not execute its commands; '' if all do or are unknown."""
        self._poll()
        return self._first(ControllerReference.problem)

    def explanation(self) -> str:
        """Return why a controller does not follow the reference trajectory; '' if unknown."""
        return self._first(ControllerReference.explanation)

    def _first(self, ask: Any) -> str:
        with self._lock:
            return next(filter(None, (ask(c.reference) for c in self._controllers)), '')

    def _poll(self) -> None:
        """Read the newest state of each controller."""
        with self._lock:
            for controller in self._controllers:
                positions = None
                for state, _ in queued(controller.states):
                    positions = _reference(state, controller.output.axes)
                controller.reference.poll(self._now(), positions)


def state_type() -> Any:
    """Return the message class of the states; None without the package control_msgs."""
    try:
        return type_named('control_msgs/msg/JointTrajectoryControllerState')
    except (ImportError, AttributeError):
        return None


def _reference(state: Any, joints: Sequence[str]) -> list[float]:
    """Return the reference positions of these joints, NaN for those that the state lacks."""
    known = dict(zip(state.joint_names, state.reference.positions, strict=False))
    return [known.get(joint, np.nan) for joint in joints]


def _allowed(robot: Embodiment, limits: Limits | None) -> NDArray[np.float64]:
    """Return the tracking tolerances (rad or m) [axes]; inf if they are unknown."""
    try:
        limits = limits_from_contract(robot, '') if limits is None else limits
    except LimitError:
        return np.full(len(robot.axes), np.inf)
    return tolerances(limits, tracking_errors(robot), linear_joints(robot))


class SpeedScaling:
    """Speed scaling of the trajectory controllers, as published by drivers of Universal Robots.

    A scaled trajectory controller executes a trajectory more slowly than it was sent. The control
    loop slows its reference trajectory equally. The subscription lasts until cleanup.

    Args:
        node: The action node.
        now: Returns the moment (s).
    """

    def __init__(self, node: SuiteNode, now: Callable[[], float]) -> None:
        self._now = now
        self._share, self._arrived = 1.0, -math.inf
        node.subscribe(Float64, SPEED_SCALING, self._hear, qos.SENSOR, always=True)

    def share(self) -> float:
        """Return the speed scaling, 0 to 1; 1 if no driver publishes one."""
        return self._share if 0.0 <= self._now() - self._arrived <= MAX_SPEED_AGE else 1.0

    def _hear(self, message: Float64) -> None:
        if math.isfinite(message.data):
            self._share = min(max(message.data / 100.0, 0.0), 1.0)
            self._arrived = self._now()
