"""Serve `control/arm`, `control/stop`, `control/reset` and `control/takeover`.

The services have a separate ROS node, executor and thread, so that no other callback of the
process delays a stop. `control/state` has every change of the state, and within a second every
change of the reason why nothing moves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from rclpy.clock import Clock, ClockType
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from std_srvs.srv import SetBool, Trigger

from embodied_kv.control.control_loop import ControlLoop
from embodied_kv.control.safety_state_machine import (
    STATES,
    STOPPED,
    TAKEN_OVER,
    RefusedError,
    SafetyStateMachine,
)
from embodied_kv.msg import ControlState
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.control.emergency_stop import EmergencyStops
from embodied_kv.nodes.control.instruction_server import InstructionServer
from embodied_kv.robots.contract import Contract
from embodied_kv.text import LINE, reason, shown, trace

CHECK_PERIOD = 1.0  # s between two checks whether the reason has changed
WAKE = 0.1  # s between two checks whether the thread must end
LAST = 3  # executor iterations that send the result of the last goal
INACTIVE, AT_REST = 'the action node is not active', 'at rest'
CONFIRM = 0.25  # longest time (s) until the control loop confirms a decision


class OperatorShare:
    """Share of the time since its creation in which an operator moved the arm."""

    def __init__(self) -> None:
        self._began = self._seen = time.monotonic()
        self._human, self._taken = 0.0, False

    def at(self, taken: bool) -> float:
        """Return the share until now. taken: whether the operator moves the arm from now on."""
        now = time.monotonic()
        self._human += (now - self._seen) * self._taken
        self._seen, self._taken = now, taken
        return self._human / (now - self._began) if now > self._began else 0.0


class ControlServices:
    """The control services until `close`; `goals` serves the action `execute_instruction`.

    Args:
        node: The action node; the services have its namespace and context.
        safety: The safety state machine, which is also used while the node is not active.
        shadow: Whether nothing is commanded, in any state.
        contract: The contract of the robot.
        now: Returns the moment (s) on the clock of the control loop.
        stands: Returns for how long (s) the arm has stood still.
        standstill_timeout: See `InstructionServer`.

    Raises:
        ValueError: An emergency-stop input of the contract cannot be read.
    """

    def __init__(
        self,
        node: Node,
        safety: SafetyStateMachine,
        shadow: bool,
        contract: Contract,
        now: Callable[[], float],
        stands: Callable[[], float],
        standstill_timeout: float,
    ) -> None:
        self.node = Node('control', namespace=node.get_namespace(), context=node.context)
        self._shadow, self._now = shadow, now
        self._safety = safety
        self._loop: ControlLoop | None = None  # while the node is active
        self._stops = safety.stops  # number of handled stops
        self._lock = threading.Lock()
        self._share = OperatorShare()
        self._states = self.node.create_publisher(ControlState, 'control/state', qos.STATUS)
        for kind, name, answer, inactive in (  # inactive: served while the node is inactive, too
            (SetBool, 'arm', self._arm, False),
            (Trigger, 'stop', self._stop, True),
            (Trigger, 'reset', self._reset, True),
            (SetBool, 'takeover', self._take_over, False),
        ):
            self.node.create_service(kind, f'control/{name}', self._answering(answer, inactive))
        self.goals = InstructionServer(
            self.node, self._active_safety, contract.language, now, stands, standstill_timeout
        )
        try:
            self.estops = EmergencyStops(self.node, contract.estop, self._active_safety, now)
        except ValueError:
            self.goals.close()
            self.node.destroy_node()
            raise
        self._published = None, ''  # newest published state and reason
        self._publishing = threading.Lock()
        self.node.create_timer(
            CHECK_PERIOD, self._publish_changes, clock=Clock(clock_type=ClockType.STEADY_TIME)
        )
        self._executor = SingleThreadedExecutor(context=node.context)
        self._executor.add_node(self.node)
        self._over = False
        self._thread = threading.Thread(target=self._serve, name='control services', daemon=True)
        self._thread.start()

    def attach(self, loop: ControlLoop | None) -> None:
        """Use this control loop from now on; None if the node is not active."""
        with self._lock:
            self._loop, self._share = loop, OperatorShare()
        self.goals.attach(loop)
        self.publish_state()

    def _active_safety(self) -> SafetyStateMachine | None:
        return self._safety if self._loop is not None else None

    def publish_state(self) -> None:
        """Publish the state; after a stop also clear the instruction. Thread-safe."""
        stops = self._safety.stops
        if stops != self._stops:
            self._stops = stops
            self.goals.clear()
        with self._publishing:  # so that the last message has the present state
            message = self.message()
            self._published = message.state, message.reason
            self._states.publish(message)

    def note_motion(self) -> None:
        """Publish the state if its last reason no longer holds, because a command was sent."""
        if self._published[1]:
            self.publish_state()

    def _publish_changes(self) -> None:
        message = self.message()
        if (message.state, message.reason) != self._published:
            self.publish_state()

    def message(self) -> ControlState:
        """Return the state, with the reason why nothing is commanded."""
        safety = self._safety
        with self._lock:
            active = self._loop is not None
            share = self._share.at(active and safety.state == TAKEN_OVER)
        message = ControlState(shadow=self._shadow, human_share=share)
        message.header.stamp = self.node.get_clock().now().to_msg()
        message.state = STATES.index(safety.state)  # numbered as in ControlState.msg
        reason = safety.idle_reason(self._now()) if active else INACTIVE
        if not active and safety.state == STOPPED:
            reason = f'{INACTIVE}; {safety.blocked_by}'
        message.reason = shown(reason, LINE)
        return message

    def close(self) -> None:
        """End the services and the goal, and destroy the node."""
        self._over = True
        self._executor.wake()
        self._thread.join()
        self.goals.end()
        for _ in range(LAST):
            self._executor.spin_once(timeout_sec=0)
        self._executor.shutdown()
        self.goals.close()
        self.node.destroy_node()

    # ------------------------------------------------------------------ services

    def _arm(self, safety: SafetyStateMachine, wanted: bool) -> str:
        if not wanted:
            safety.disarm()
            return f'disarmed; {self._braking()}'
        safety.arm(self._now())
        if self._shadow:
            return 'armed in shadow mode: chunks are published, nothing is commanded'
        if safety.is_meant_to_move:
            return 'armed: the policy moves the arm'
        return 'armed: the policy moves the arm once an instruction is in force'

    def _stop(self, safety: SafetyStateMachine, _: object) -> str:
        safety.stop('a client of control/stop')
        loop = self._loop
        if loop is None:
            self.publish_state()
            return f'stopped; {INACTIVE} and commands nothing'
        braking = self._braking()
        is_known = braking != AT_REST and not loop.executor.is_partial
        if not is_known and (unrest := loop.unrest()):
            braking = f'{unrest}: if the arm moves, use the emergency stop'
        return f'stopped; {braking}; to continue call control/reset, then control/arm'

    def _braking(self) -> str:
        """Return how the control loop responded. Raises RefusedError if it did not."""
        loop = self._loop
        left = loop.confirm(CONFIRM) if loop is not None else None
        if left is None:
            raise RefusedError(
                f'the decision is latched, but the control loop did not confirm it within '
                f'{CONFIRM:g} s: use the emergency stop'
            )
        return f'braking, at rest in {left:.2f} s' if left > 0 else AT_REST

    def _reset(self, safety: SafetyStateMachine, _: object) -> str:
        if safety.state == STOPPED:
            self.goals.clear()  # an instruction may have come since the stop
        safety.reset()
        if self._loop is None:
            self.publish_state()
        return 'reset; to continue call control/arm and publish an instruction'

    def _take_over(self, safety: SafetyStateMachine, wanted: bool) -> str:
        if wanted:
            safety.take_over()
            return f'taken over; {self._braking()}; then nothing is commanded'
        safety.give_back(self._now())
        return 'given back; the next motion starts at the measured position'

    def _answering(
        self, answer: Callable[[SafetyStateMachine, bool], str], inactive: bool
    ) -> Callable:
        def answered(request: object, response: Any) -> object:
            try:
                if self._loop is None and not inactive:
                    raise RefusedError(f'{INACTIVE}: activate it first')
                response.message = answer(self._safety, getattr(request, 'data', True))
                response.success = True
            except RefusedError as error:
                response.success, response.message = False, shown(reason(error), LINE)
            return response

        return answered

    def _serve(self) -> None:
        while not self._over:
            try:
                self._executor.spin_once(timeout_sec=WAKE)
            except Exception as error:  # the services that stop the arm must remain available
                self.node.get_logger().error(f'control service failed\n{trace(error)}')
