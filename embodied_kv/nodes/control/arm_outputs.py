"""Send commands and set-points to the controllers of a robot, by topics and actions.

Positions, trajectories and goals are sent directly. Velocities and twists are sent through the
command watchdog; on their topics, the node publishes only zeros.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile
from trajectory_msgs.msg import JointTrajectory

from embodied_kv.control.command import STOP, Command, Setpoint
from embodied_kv.control.command_watchdog import VelocityOutputs
from embodied_kv.control.control_loop import MAX_LATENESS
from embodied_kv.control.limits import Limits
from embodied_kv.control.safety_state_machine import RefusedError
from embodied_kv.nodes.common import conversions
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.control.action_outputs import (
    FollowTrajectoryClient,
    GoalClient,
    GripperClient,
    Outcome,
)
from embodied_kv.nodes.control.controller_states import ControllerStates
from embodied_kv.nodes.control.controllers import KINDS, setpoint_message
from embodied_kv.nodes.control.watchdog_link import WatchdogLink
from embodied_kv.robots.channels import FOLLOW_TRAJECTORY, GOALS, GRIPPERS, TRAJECTORY
from embodied_kv.robots.mapping import Output

PATIENCE = 0.5  # s that a command topic may lack a subscriber
REPORTED = 5.0  # s for which the fault of a goal forbids motion

P = TypeVar('P')  # by the type of the output


@dataclass(frozen=True)
class _Controller(Generic[P]):
    output: Output
    publisher: P


class ArmOutputs:
    """Publishers and action clients of a node, one for each output, until the node's cleanup.

    Args:
        node: The action node, configured.
        outputs: The outputs of the robot.
        profile: Quality of service of the command topics.
        setpoint_rate: Set-points per second while the arm moves.
        stamped: Returns whether the clock of the controllers agrees with that of the node, so
            that a trajectory may carry its start time.
        limits: The limits of the robot; None: those in the contract.

    Raises:
        ValueError: The contract names an action whose package is not installed.
    """

    def __init__(
        self,
        node: SuiteNode,
        outputs: Sequence[Output],
        profile: QoSProfile,
        setpoint_rate: float = 100.0,
        stamped: Callable[[], bool] = lambda: False,
        limits: Limits | None = None,
    ) -> None:
        self._node, self._stamped = node, stamped
        self._fault, self._fault_at = '', 0.0  # of a goal
        self._heard = time.monotonic()  # when every topic had a subscriber
        made: list[_Controller[Any]] = [
            _Controller(output, self._sender(output, profile)) for output in outputs
        ]
        self._topics: list[_Controller[Publisher]] = [
            c for c in made if c.output.type not in GOALS
        ]
        self._clients: list[GoalClient] = [c.publisher for c in made if c.output.type in GOALS]
        trajectories = (TRAJECTORY, FOLLOW_TRAJECTORY)
        self._trajectories = [c for c in made if c.output.type in trajectories]
        self._velocities = [c for c in made if c.output.is_velocity]
        self._positions = [
            c for c in made if c not in self._trajectories and c not in self._velocities
        ]
        self._states = ControllerStates(node, outputs, limits)
        self._link: WatchdogLink | None = None
        if self._velocities:
            velocities = VelocityOutputs.of(node.embodiment)
            self._index = velocities.index
            self._link = WatchdogLink(node, velocities, 1 / setpoint_rate)

    def _sender(
        self, output: Output, profile: QoSProfile
    ) -> Publisher | FollowTrajectoryClient | GripperClient:
        if output.type not in GOALS:
            return self._node.publisher(KINDS[output.type], output.topic, profile)
        kind = FollowTrajectoryClient if output.type == FOLLOW_TRAJECTORY else GripperClient
        client = kind(self._node, output, self._report)
        self._node._release.callback(client.close)
        return client

    def _report(self, outcome: Outcome) -> None:
        if outcome.is_fault:
            self._fault, self._fault_at = str(outcome), time.monotonic()
            self._node.warn_throttled('goal', self._fault)

    @property
    def topics(self) -> list[str]:
        """Return the command topics on which no other node of the suite publishes."""
        return [c.publisher.topic_name for c in self._topics if not c.output.is_velocity]

    @property
    def follow_setpoints(self) -> bool:
        """Whether some controller takes set-points instead of trajectories."""
        return bool(self._positions or self._velocities)

    def setpoint_joints(self, joints: int) -> NDArray[np.bool_]:
        """Return the joints without a trajectory controller, bool [joints]."""
        found = np.ones(joints, bool)
        for controller in self._trajectories:
            found[list(controller.output.index)] = False
        return found

    def problem(self) -> str:
        """Return why the controllers would not execute a command; '' if they would.

        A topic without a subscriber is a problem after PATIENCE. For a velocity controller it is
        one at once, because the zeros that stop its joints would be lost.
        """
        now = time.monotonic()
        deaf = [c for c in self._topics if not c.publisher.get_subscription_count()]
        if not deaf:
            self._heard = now
        elif now - self._heard > PATIENCE or any(c.output.is_velocity for c in deaf):
            return (
                f'no controller subscribes to {deaf[0].publisher.topic_name}; start the '
                'controller, or correct the topic in the contract'
            )
        if self._fault and now - self._fault_at < REPORTED:
            return self._fault
        problems = [client.problem() for client in self._clients] + [self._states.problem()]
        return next(filter(None, problems), self._link.problem() if self._link else '')

    def watch(self, position: NDArray[np.float64]) -> None:
        """Note the reference position [axes] of a moving arm, for `ControllerStates`."""
        self._states.send(position)

    def explanation(self) -> str:
        """Return why the controllers do not follow the reference trajectory; '' if unknown."""
        return self._states.explanation()

    def command(self, command: Command) -> None:
        """Send the motion of a command to trajectory controllers; a stop cancels gripper goals.

        A controller with a joint at an unknown position (NaN) gets no message. An error at one
        controller is raised once the others have their messages.

        Raises RefusedError if the process was suspended before the motion was sent.
        """
        grippers = [c.publisher for c in self._positions if c.output.type in GRIPPERS]
        began, errors = time.monotonic(), []
        try:
            for publisher, message in self._messages(command):
                if time.monotonic() - began > MAX_LATENESS:
                    raise RefusedError('a motion was not sent because the process was suspended')
                try:
                    publisher.publish(message)
                except Exception as error:
                    errors.append(error)
        finally:
            for gripper in grippers if command.source == STOP else ():
                gripper.cancel()
        if errors:
            raise errors[0]

    def _messages(self, command: Command) -> list[tuple[Any, JointTrajectory]]:
        """Return the publishers of trajectory controllers, and their messages."""
        if not len(command.points):
            return []
        start = self._node.get_clock().now().to_msg() if self._stamped() else None
        messages = []
        for controller in self._trajectories:
            index = list(controller.output.index)
            points, velocities = command.points[:, index], command.velocities[:, index]
            if not np.isfinite(points).all():
                continue
            parts = points, velocities, command.times, controller.output.axes, start
            messages.append((controller.publisher, conversions.trajectory_message(*parts)))
        return messages

    def setpoint(self, setpoint: Setpoint) -> None:
        """Send a set-point to the other controllers, velocities through the command watchdog.

        Unknown positions (NaN) are not sent, nor goals of a gripper that a stop has cancelled. If
        the watchdog has a problem, this node sends zeros to the velocity controllers.
        """
        if setpoint.positions is not None:
            for controller in self._positions:
                values = setpoint.positions[list(controller.output.index)]
                is_cancelled = setpoint.source == STOP and controller.output.type in GRIPPERS
                if np.isfinite(values).all() and not is_cancelled:
                    self._publish(controller, values.tolist())
        if self._link is None:
            return
        velocities = setpoint.velocities
        if velocities is None:
            self.zero()
            return
        self._link.send([float(velocities[place]) for place in self._index])
        if self._link.problem():
            self._publish_zeros()

    def zero(self) -> None:
        """Send zero to each velocity controller, both directly and through the watchdog."""
        if self._link is not None:
            self._link.send([0.0] * len(self._index))
            self._publish_zeros()

    def _publish_zeros(self) -> None:
        for controller in self._velocities:
            self._publish(controller, [0.0] * len(controller.output.axes))

    def _publish(self, controller: _Controller[Any], values: Sequence[float]) -> None:
        now = self._node.get_clock().now().to_msg()
        controller.publisher.publish(setpoint_message(controller.output, values, now))
