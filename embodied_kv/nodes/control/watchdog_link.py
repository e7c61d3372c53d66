"""Connection of the action node to the command watchdog: set-points and heartbeats.

The command watchdog and the action node must run on one machine: they compare CLOCK_MONOTONIC.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from threading import Lock

from embodied_kv.control.command_watchdog import SECOND, VelocityOutputs, timeout
from embodied_kv.msg import VelocitySetpoint, WatchdogState
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.common.polling import PolledGroup, queued
from embodied_kv.nodes.control.controllers import SETPOINT, STATE

MAX_AGE = 0.25  # maximum age (s) of a heartbeat; there are 20 per second
REST = 1e-6  # rad/s or m/s below which a value is sent as zero: so every motion ends with zero
REMEDY = (
    'start `ros2 run embodied_kv command_watchdog` in the namespace of the robot, on this machine '
    '(both launch files start it)'
)


class WatchdogLink:
    """Publisher of set-points to the command watchdog until cleanup. Thread-safe.

    Args:
        node: The action node, configured.
        outputs: The velocity outputs of the robot.
        period: Time (s) between two set-points while the arm moves.
    """

    def __init__(self, node: SuiteNode, outputs: VelocityOutputs, period: float) -> None:
        self._period, self._layout = period, outputs.layout
        self._topic = node.resolve_topic_name(STATE)
        self._publisher = node.publisher(VelocitySetpoint, SETPOINT, qos.SENSOR)
        self._heartbeats = node.subscribe(
            WatchdogState, STATE, lambda _: None, qos.SENSOR, always=True, group=PolledGroup()
        )
        self._lock = Lock()
        self._sender = secrets.randbits(64)
        self._moving, self._started, self._sent = False, 0, 0
        self._late = ''  # why the present motion must end
        self._state: WatchdogState | None = None  # the newest

    def send(self, values: Sequence[float]) -> None:
        """Publish a set-point, rad/s or m/s in the order of the velocity outputs.

        The first set-point that is not zero starts a motion, zero ends it. If a set-point is too
        late after the previous one, zeros are sent until the caller ends the motion.
        """
        values = [value if abs(value) >= REST else 0.0 for value in values]
        with self._lock:
            now = time.monotonic_ns()
            gap, wants_motion = now - self._sent, any(values)
            if not wants_motion:
                self._late = ''
            elif not self._moving:
                self._started = now
            elif gap > timeout(self._period) and not self._late:
                self._late = f'set-points were interrupted for {gap / SECOND:.3f} s'
            self._moving, self._sent = wants_motion, now
            message = VelocitySetpoint(
                layout=self._layout,
                sender=self._sender,
                started=self._started,
                sent=now,
                period=self._period,
                values=[0.0] * len(values) if self._late else values,
            )
            self._publisher.publish(message)

    def problem(self) -> str:
        """Return why velocity controllers must not be moved now; '' if they may.

        If the watchdog has ended the present motion, its reason holds until zero is sent.
        """
        with self._lock:
            for heartbeat, _ in queued(self._heartbeats):
                self._state = heartbeat
            state = self._state
            age = (time.monotonic_ns() - state.sent) / SECOND if state else 0.0
            if state is None or not -MAX_AGE <= age <= MAX_AGE:
                silence = f', last one {age:.2f} s ago' if state else ''
                return (
                    'the command watchdog of this robot is not running '
                    f'(no heartbeat on {self._topic}{silence}); {REMEDY}'
                )
            if state.layout != self._layout:
                return (
                    'the command watchdog must have the contract of the action node (got other '
                    'velocity outputs or limits); start both with the same parameter contract'
                )
            if state.ending:
                return f'the command watchdog of this robot is ending; {REMEDY}'
            if self._late:
                return self._late
            if self._moving and state.stopped >= self._started:
                why = state.reason or 'it was restarted'
                return f'the command watchdog ended the motion: {why}'
            return ''
