"""Action clients for controllers that take goals.

A client has the interface of a publisher: `publish` sends a message as the newest goal, which
replaces the previous goal, and never waits. A callback reports the outcome of each goal.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock, RLock
from typing import Any

from action_msgs.msg import GoalStatus
from rclpy.action import ActionClient
from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rclpy.task import Future
from sensor_msgs.msg import JointState
from trajectory_msgs.msg import JointTrajectory

from embodied_kv.nodes.common.publishers import type_named
from embodied_kv.robots.channels import FOLLOW_TRAJECTORY, GRIPPER
from embodied_kv.robots.mapping import Output

SUCCEEDED, REPLACED, CANCELLED, STALLED = 'succeeded', 'replaced', 'cancelled', 'stalled'
REFUSED, ABORTED, UNREACHABLE = FAULTS = ('refused', 'aborted', 'unreachable')

ANSWER = 1.0  # s that a server may take to accept or refuse a goal
PERIOD = 0.1  # minimum time (s) between two goals of a gripper
SAME = 1e-4  # rad or m: a gripper's goal that is closer to the previous one is the same goal
# error_code of control_msgs/action/FollowJointTrajectory
ERRORS = {
    -1: 'INVALID_GOAL',
    -2: 'INVALID_JOINTS',
    -3: 'OLD_HEADER_TIMESTAMP',
    -4: 'PATH_TOLERANCE_VIOLATED',
    -5: 'GOAL_TOLERANCE_VIOLATED',
}
VIOLATIONS = (-4, -5)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a goal.

    Args:
        action: Resolved name of the action.
        state: SUCCEEDED, REPLACED by a newer goal, CANCELLED by `cancel`, STALLED (a gripper holds
            an object), or one of FAULTS: REFUSED or ABORTED by the server, or UNREACHABLE without
            a server.
        reason: The reason of the server; '' for none.
    """

    action: str
    state: str
    reason: str = ''

    @property
    def is_fault(self) -> bool:
        """Return whether the controller does not execute the goal."""
        return self.state in FAULTS

    def __str__(self) -> str:
        because = f' ({self.reason})' if self.reason else ''
        return f'goal of {self.action} was {self.state}{because}'


Report = Callable[[Outcome], None]


def action_type(name: str) -> Any:
    """Return the class of an action of control_msgs. Raises ValueError if it is not installed."""
    try:
        return type_named(name)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f'{name} must be installed (got: {error}); install ros-${{ROS_DISTRO}}-control-msgs'
        ) from error


class GoalClient:
    """Client of one action until `close`; a new goal replaces the previous one.

    `send`, `cancel` and `problem` may be called from any thread and do not wait.

    Args:
        node: The node, whose executor receives the answers.
        action: The class of the action.
        name: Its name.
        report: Called for each goal that ends, on the thread of the executor; for UNREACHABLE on
            the thread that calls `send`. It must not raise.
        clock: The steady time in seconds.
    """

    def __init__(
        self,
        node: Node,
        action: Any,
        name: str,
        report: Report,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.action, self._clock, self._report = action, clock, report
        self.name = node.resolve_topic_name(name)
        self._client = _Client(node, action, name)
        self._logger = node.get_logger()
        self._lock = Lock()
        self._number = self._cancelled = 0  # of the newest goal; of the newest cancelled goal
        self._asked: dict[int, float] = {}  # goals without an answer, and when they were sent
        self._handles: dict[int, Any] = {}  # accepted goals without a result
        self._closed = False

    def send(self, goal: Any) -> None:
        """Send a goal, which replaces the previous one."""
        if not self._client.server_is_ready():
            self._tell(UNREACHABLE, 'no action server')
            return
        with self._lock:  # goals are sent in the order of their numbers
            if self._closed:
                return
            self._number += 1
            number = self._number
            self._asked[number] = self._clock()
            future = self._client.send_goal_async(goal)
        future.add_done_callback(lambda done: self._guarded(self._answered, number, done))

    def cancel(self) -> None:
        """Cancel all goals, also those that are not accepted yet."""
        with self._lock:
            self._cancelled = self._number
            handles = list(self._handles.values())
        for handle in handles:
            handle.cancel_goal_async()

    def problem(self) -> str:
        """Return why goals do not arrive now; '' if they do."""
        is_ready = self._client.server_is_ready()
        with self._lock:
            if not is_ready:  # a server that ends does not answer its goals
                self._asked.clear()
            oldest = min(self._asked.values(), default=None)
        if not is_ready:
            return f'no action server is at {self.name}; start its controller'
        age = 0.0 if oldest is None else self._clock() - oldest
        if age > ANSWER:
            return f'the action server at {self.name} did not answer a goal for {age:.1f} s'
        return ''

    def close(self) -> None:
        """Send and report nothing more."""
        with self._lock:
            self._closed = True
        self._client.destroy()

    def _answered(self, number: int, done: Future) -> None:
        handle = done.result()
        with self._lock:
            # Answers arrive in order, so those to earlier goals are lost if they are missing.
            self._asked = {n: t for n, t in self._asked.items() if n > number}
            cancelled = number <= self._cancelled
            if handle.accepted:
                self._handles[number] = handle
        if not handle.accepted:
            if not cancelled:
                self._tell(REFUSED, 'the server refused it; is its controller active?')
            return
        if cancelled:
            handle.cancel_goal_async()
        result = handle.get_result_async()
        result.add_done_callback(lambda ended: self._guarded(self._ended, number, ended))

    def _ended(self, number: int, done: Future) -> None:
        response = done.result()
        with self._lock:
            self._handles.pop(number, None)
            replaced, cancelled = number < self._number, number <= self._cancelled
        self._tell(*self._end(response.status, response.result, replaced, cancelled))

    def _end(self, status: int, result: Any, replaced: bool, cancelled: bool) -> tuple[str, str]:
        """Return the state and the reason of a goal that was accepted and ended.

        A joint_trajectory_controller aborts a replaced goal as INVALID_GOAL, other servers cancel
        it. So the order of the goals decides whether a goal was replaced.
        """
        code = getattr(result, 'error_code', 0)
        reason = ': '.join(filter(None, (ERRORS.get(code), getattr(result, 'error_string', ''))))
        if status == GoalStatus.STATUS_SUCCEEDED:
            return SUCCEEDED, reason
        if code in VIOLATIONS:  # reported even if a newer goal was sent
            return ABORTED, reason
        if getattr(result, 'stalled', False):
            return STALLED, reason
        if cancelled:
            return CANCELLED, reason
        if replaced:
            return REPLACED, reason
        if status == GoalStatus.STATUS_CANCELED:
            return ABORTED, reason or 'it was cancelled or replaced from elsewhere'
        return ABORTED, reason or 'the server gave no reason'

    def _tell(self, state: str, reason: str) -> None:
        if not self._closed:
            try:
                self._report(Outcome(self.name, state, reason))
            except Exception as error:  # the executor would end
                self._logger.error(f'report of {self.name} failed: {error!r}')

    def _guarded(self, work: Callable[[int, Future], None], number: int, done: Future) -> None:
        try:
            work(number, done)
        except Exception as error:  # the executor would end
            self._logger.error(f'answer of {self.name} failed: {error!r}')


class FollowTrajectoryClient(GoalClient):
    """Client of a control_msgs/action/FollowJointTrajectory controller.

    The controller applies its own tolerances. To brake, publish a braking trajectory, and cancel
    only at rest, because a cancelled controller stops abruptly.

    Args:
        node: The node.
        output: An output of the type FOLLOW_TRAJECTORY.
        report: See GoalClient.

    Raises:
        ValueError: if control_msgs is not installed.
    """

    def __init__(self, node: Node, output: Output, report: Report) -> None:
        super().__init__(node, action_type(FOLLOW_TRAJECTORY), output.topic, report)

    def publish(self, message: JointTrajectory) -> None:
        """Send a trajectory as the newest goal."""
        self.send(self.action.Goal(trajectory=message))


class GripperClient(GoalClient):
    """Client of a control_msgs/action/GripperCommand or ParallelGripperCommand controller.

    A position is sent if it differs from the previous one, at most once per PERIOD; the newest
    one is never skipped. A stalled gripper holds an object, which is not a fault.

    Args:
        node: The node.
        output: An output of a type in GRIPPERS, with its max_effort.
        report: See GoalClient.

    Raises:
        ValueError: if control_msgs is not installed.
    """

    def __init__(self, node: Node, output: Output, report: Report) -> None:
        super().__init__(node, action_type(output.type), output.topic, report)
        self._output, self._node = output, node
        self._waiting = RLock()  # also while it sends, so that no goal follows a cancel
        self._wanted: float | None = None  # the newest position
        self._sent: float | None = None  # the position of the newest goal
        self._at = -PERIOD  # when that goal was sent (s)
        self._timer = node.create_timer(
            PERIOD / 2, self._send_newest, clock=Clock(clock_type=ClockType.STEADY_TIME)
        )

    def publish(self, message: JointState) -> None:
        """Move to the position (rad or m) of a message, within PERIOD."""
        with self._waiting:
            self._wanted = float(message.position[0])
        self._send_newest()

    def cancel(self) -> None:
        """Cancel the goals: the gripper holds its position."""
        with self._waiting:
            self._forget()
            super().cancel()

    def close(self) -> None:
        """Send and report nothing more."""
        self._node.destroy_timer(self._timer)
        super().close()

    def _send_newest(self) -> None:
        now = self._clock()
        with self._waiting:
            wanted, sent = self._wanted, self._sent
            if wanted is None or (sent is not None and abs(wanted - sent) < SAME):
                return
            if now < self._at + PERIOD:
                return
            self._sent, self._at = wanted, now
            self.send(self._goal(wanted))

    def _goal(self, position: float) -> Any:
        goal, effort = self.action.Goal(), self._output.max_effort
        if self._output.type == GRIPPER:
            goal.command.position, goal.command.max_effort = position, effort
        else:
            goal.command.name = list(self._output.axes)
            goal.command.position = [position]
            goal.command.effort = [effort] if effort else []
        return goal

    def _tell(self, state: str, reason: str) -> None:
        if state in FAULTS:
            self._forget()  # the next position is sent, even if it is the same
        super()._tell(state, reason)

    def _forget(self) -> None:
        with self._waiting:
            self._wanted = self._sent = None


class _Client(ActionClient):
    """An action client whose goals may be sent from any thread.

    It needs a lock, because rclpy drops an answer that arrives before its request is registered.
    """

    def __init__(self, node: Node, action: Any, name: str) -> None:
        self._requests = Lock()
        super().__init__(node, action, name)

    def send_goal_async(self, *arguments: Any, **options: Any) -> Future:
        with self._requests:
            return super().send_goal_async(*arguments, **options)

    def _cancel_goal_async(self, goal_handle: Any) -> Future:
        with self._requests:
            return super()._cancel_goal_async(goal_handle)

    def _get_result_async(self, goal_handle: Any) -> Future:
        with self._requests:
            return super()._get_result_async(goal_handle)

    def take_data(self) -> Any:
        with self._requests:
            return super().take_data()
