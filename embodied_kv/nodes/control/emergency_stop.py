"""The emergency-stop inputs of a contract: topics that must hold a safe value for the arm to move.

An unsafe value, and a topic without a message within its timeout, stop the arm as `control/stop`
does. The inputs are served by the executor of the control services, which no other callback
blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce

from rclpy.clock import Clock, ClockType
from rclpy.node import Node

from embodied_kv.control.safety_state_machine import STOPPED, SafetyStateMachine
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.common.publishers import type_named
from embodied_kv.robots.contract import Estop

LOOK = 0.05  # s between two checks of the timeouts
UNKNOWN = object()  # before the first message


@dataclass(eq=False)
class _Input:
    """An input, the newest value of its field, and the moment (s) at which it arrived."""

    estop: Estop
    value: object = UNKNOWN
    arrived: float = 0.0

    def problem(self, now: float) -> str:
        """Return why the arm must not move; '' if it may."""
        estop = self.estop
        if self.value is UNKNOWN:
            return f'no message on the emergency-stop input {estop.topic} yet'
        if not estop.is_safe(self.value):
            safe = ' or '.join(map(str, estop.safe))
            return f'{estop.topic}: {estop.field} must be {safe} (got {self.value})'
        age = abs(now - self.arrived)  # the clock may go back
        if estop.timeout is not None and age > estop.timeout:
            return (
                f'no message on the emergency-stop input {estop.topic} for {age:.1f} s, '
                f'{estop.timeout:g} s are allowed'
            )
        return ''


class EmergencyStops:
    """Subscriptions of the emergency-stop inputs, until the node is destroyed.

    Args:
        node: The node of the control services.
        estops: The inputs of the contract.
        safety: Returns the safety state machine; None while the action node is not active.
        now: Returns the moment (s).

    Raises:
        ValueError: A message type is not installed, or lacks the field.
    """

    def __init__(
        self,
        node: Node,
        estops: Sequence[Estop],
        safety: Callable[[], SafetyStateMachine | None],
        now: Callable[[], float],
    ) -> None:
        self._safety, self._now = safety, now
        self._inputs = [_Input(estop) for estop in estops]
        for one in self._inputs:
            kind = message_type(one.estop)
            profile = qos.SENSOR if one.estop.timeout is not None else qos.STATUS
            node.create_subscription(kind, one.estop.topic, partial(self._hear, one), profile)
        if self._inputs:
            node.create_timer(LOOK, self._look, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def problem(self, now: float) -> str:
        """Return why the arm must not move, for all inputs; '' if it may."""
        return '; '.join(filter(None, (one.problem(now) for one in self._inputs)))

    def _hear(self, one: _Input, message: object) -> None:
        one.value = reduce(getattr, one.estop.field.split('.'), message)
        one.arrived = self._now()
        self._look()

    def _look(self) -> None:
        """Stop the arm if an input has a problem, which also prevents arming.

        An input without a first message stops only an armed arm.
        """
        safety = self._safety()
        if safety is None or safety.state == STOPPED:
            return
        now = self._now()
        for one in self._inputs:
            waits = one.value is UNKNOWN and not safety.is_armed
            if not waits and (problem := one.problem(now)):
                safety.stop(problem)
                return


def message_type(estop: Estop) -> type:
    """Return the message type of an input, and check that it has the field.

    Raises:
        ValueError: The type is not installed, or lacks the field.
    """
    try:
        kind = type_named(estop.type)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f'estop {estop.topic}: type must be an installed message type (got {estop.type}); '
            f'install the package {estop.type.partition("/")[0]}'
        ) from error
    try:
        reduce(getattr, estop.field.split('.'), kind())
    except AttributeError as error:
        fields = ', '.join(kind.get_fields_and_field_types())
        raise ValueError(
            f'estop {estop.topic}: field must be a field of {estop.type} (got {estop.field}); '
            f'it has {fields}'
        ) from error
    return kind
