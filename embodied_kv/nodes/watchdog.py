"""The command watchdog: forwards velocity set-points to controllers; sends zeros if they cease.

The watchdog is a separate process on the machine of the action node. It imports neither torch nor
the engine, so it starts within a second, and their failures do not affect it.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.signals import SignalHandlerOptions

from embodied_kv import storage
from embodied_kv.control.command_watchdog import (
    GRACE,
    SECOND,
    CommandWatchdog,
    VelocityOutputs,
    VelocitySetpoint,
)
from embodied_kv.msg import VelocitySetpoint as VelocitySetpointMsg
from embodied_kv.msg import WatchdogState
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.common.parameters import Parameters, param
from embodied_kv.nodes.common.process import leave, lock_path
from embodied_kv.nodes.control.controllers import KINDS, SETPOINT, STATE, setpoint_message
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.reading import ContractError
from embodied_kv.text import LINE, reason, shown
from embodied_kv.throttle import Throttled

NAME = 'command_watchdog'
HEARTBEAT = 0.05  # s


@dataclass(frozen=True)
class WatchdogParams:
    """Parameters of the command watchdog."""

    contract: str = param(
        '',
        'The contract of the action node: the name of a shipped contract, or a YAML file',
        'start',
    )


class WatchdogNode(Node):
    """Node that publishes the velocity and twist commands of the robot in its namespace.

    Raises ContractError for a contract that cannot be used, ValueError for another parameter.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(NAME, **arguments)
        parameters = Parameters(self, [('', WatchdogParams)], lambda: True)
        parameters.check()
        robot = Embodiment.load(parameters.read(WatchdogParams).contract)
        self.outputs = VelocityOutputs.of(robot)
        log = self.get_logger()
        self._warn = Throttled(lambda line: log.warning(line))
        self._controllers = [
            self.create_publisher(KINDS[output.type], output.topic, QoSProfile(depth=1))
            for output in self.outputs.outputs
        ]
        self._state = self.create_publisher(WatchdogState, STATE, qos.SENSOR)
        self.create_subscription(VelocitySetpointMsg, SETPOINT, self._on_setpoint, qos.SENSOR)
        self._watchdog = CommandWatchdog(self.outputs, self._publish, time.monotonic_ns())
        self._ending, self._stops, self._next_heartbeat = False, 0, 0

    @property
    def is_finished(self) -> bool:
        """Return whether `end` was called and all zeros were sent."""
        return self._watchdog.is_finished

    def end(self, grace: float = GRACE) -> None:
        """Let the present motion be completed within `grace` s, then finish."""
        self._ending = True
        self._watchdog.end(time.monotonic_ns(), grace)

    def wait(self) -> float:
        """Return the time (s) until `check` has to be called."""
        now = time.monotonic_ns()
        heartbeat = max(0.0, (self._next_heartbeat - now) / SECOND)
        return min(self._watchdog.wait(now), heartbeat)

    def check(self) -> None:
        """End a motion without set-points; publish zeros and heartbeats that are due."""
        now = time.monotonic_ns()
        self._watchdog.check(now)
        stopped = self._watchdog.stops > self._stops
        if stopped:
            self._stops = self._watchdog.stops
            line = f'motion ended, zeros sent to the controllers: {self._watchdog.reason}'
            self._warn('stop', shown(line, LINE))
        if stopped or now >= self._next_heartbeat:
            self._next_heartbeat = now + round(HEARTBEAT * SECOND)
            self._state.publish(self._heartbeat(now))
            self._warn.flush()

    def _heartbeat(self, now: int) -> WatchdogState:
        watchdog = self._watchdog
        return WatchdogState(
            layout=self.outputs.layout,
            sent=now,
            stopped=watchdog.stopped,
            reason=watchdog.reason,
            ending=self._ending,
            forwarded=watchdog.forwarded,
            refused=watchdog.refused,
            stops=watchdog.stops,
        )

    def _on_setpoint(self, message: VelocitySetpointMsg) -> None:
        setpoint = VelocitySetpoint(
            layout=message.layout,
            sender=message.sender,
            started=message.started,
            sent=message.sent,
            period=message.period,
            values=message.values,
        )
        if refusal := self._watchdog.forward(setpoint, time.monotonic_ns()):
            self._warn('refused', shown(f'set-point not sent: {refusal}', LINE))

    def _publish(self, values: Sequence[float]) -> None:
        now = self.get_clock().now().to_msg()
        for publisher, (output, own) in zip(
            self._controllers, self.outputs.split(values), strict=True
        ):
            publisher.publish(setpoint_message(output, own, now))


def serve(node: WatchdogNode, stopping: Sequence[object]) -> None:
    """Run the node until a signal is in `stopping` and all zeros were sent.

    The first signal lets the motion be completed within GRACE s, a second one ends it at once.
    """
    executor = SingleThreadedExecutor(context=node.context)
    executor.add_node(node)
    asked = 0
    while not node.is_finished:
        executor.spin_once(timeout_sec=node.wait())
        node.check()
        if len(stopping) > asked:
            asked = len(stopping)
            node.end(GRACE if asked == 1 else 0.0)
    executor.shutdown()


def main() -> None:
    """Run the executable `command_watchdog`, until SIGINT, SIGTERM or SIGHUP."""
    faulthandler.enable()  # a crash of native code prints where it happened
    stopping: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: stopping.append(number))
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    try:
        _run(stopping)
    finally:
        rclpy.try_shutdown()
    leave(0)


def _run(stopping: Sequence[int]) -> None:
    try:
        node = WatchdogNode()
    except (ContractError, ValueError) as error:
        rclpy.logging.get_logger(NAME).fatal(shown(reason(error), LINE))
        sys.exit(1)
    log, namespace = node.get_logger(), node.get_namespace()
    topics = ', '.join(output.topic for output in node.outputs.outputs)
    if not topics:
        log.info('the contract has no velocity outputs; the command watchdog is not needed')
        return
    lock = lock_path(namespace, node.context.get_domain_id(), NAME)
    with ExitStack() as locks:
        try:
            is_ours = locks.enter_context(storage.locked(lock, wait=False, file=True))
        except OSError as error:
            log.fatal(f'the lock file cannot be used: {error}; remove it')
            sys.exit(1)
        if not is_ours:
            log.fatal(f'a namespace must have one command watchdog (got a second in {namespace})')
            sys.exit(1)
        log.info(f'forwards velocity set-points to {topics}')
        serve(node, stopping)
    node.destroy_node()


if __name__ == '__main__':
    main()
