"""The action node: each frame's handle becomes a chunk, and every control period a command."""

from __future__ import annotations

import time
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass

import numpy as np
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory

from embodied_kv.control import execution_horizon, realtime
from embodied_kv.control.command import Command, Measured, Setpoint
from embodied_kv.control.control_loop import ControlLoop
from embodied_kv.control.guard import STOPPED, Guard
from embodied_kv.control.limits import POSITION, Limits
from embodied_kv.control.trajectory_executor import FRESH, STOP, TrajectoryExecutor
from embodied_kv.kv.handle import KvHandle, Lease, Stale
from embodied_kv.msg import ActionChunk as ActionChunkMsg
from embodied_kv.nodes.common import conversions, executable, qos
from embodied_kv.nodes.common.lifecycle_node import ERROR, OK, WARN, SuiteNode
from embodied_kv.nodes.common.parameters import param
from embodied_kv.nodes.common.statistics import MeanMeter, PeriodMeter
from embodied_kv.nodes.control.session_parts import ActionPart
from embodied_kv.nodes.observation.handle_source import HandleSource, frame_params
from embodied_kv.types import ActionChunk

DRAIN = 5.0  # s that a denoising loop in hand may take to end


@dataclass(frozen=True)
class ActionParams:
    """How commands leave."""

    lower_limits: tuple[float, ...] = param(
        (-2.6, -1.4, -1.5, -3.1, -1.9, -3.2, 0.0), 'Joint limits, one or one per joint, rad or m'
    )
    upper_limits: tuple[float, ...] = param(
        (2.6, 1.5, 1.7, 3.1, 1.9, 3.2, 0.04), 'Joint limits, one or one per joint, rad or m'
    )
    velocity_limits: tuple[float, ...] = param(
        (6.0, 6.0, 6.0, 6.0, 6.0, 6.0, 0.5),
        'Fastest velocity, one or one per joint, rad/s or m/s',
        range=(1e-6, 1e6),
    )
    acceleration_limits: tuple[float, ...] = param(
        (60.0, 60.0, 60.0, 60.0, 60.0, 60.0, 20.0),
        'Highest acceleration, one or one per joint, rad/s^2 or m/s^2',
        range=(1e-6, 1e6),
    )
    max_tracking_error: tuple[float, ...] = param(
        (1000.0,),
        'Further from where it was sent a moving arm stops, one or one per joint, rad or m',
        range=(1e-6, 1e6),
    )
    max_state_age: float = param(
        0.5, 'Seconds without a joint state after which nothing moves', range=(1e-3, 60.0)
    )
    max_chunk_age: float = param(
        1.0, 'Seconds from an observation, at most, until its chunk takes over', range=(1e-3, 60.0)
    )
    stop_after: int = param(
        5, 'Control periods without a fresh chunk after which to stop', range=(1, 1000)
    )
    execution_horizon: str = param(
        'whole',
        'H, how many actions of a chunk may be executed, from its start; then the robot holds. '
        'whole, static:H, or confidence:T:H_MIN: as far as denoising has converged',
        'live',
        check=execution_horizon.parse,
        old='horizon',
    )
    publish_setpoints: bool = param(
        False,
        'Publish set-points on `commands` while the arm moves, for forward controllers',
        old='tick_commands',
    )
    setpoint_rate: float = param(100.0, 'Set-points per second', range=(1.0, 2000.0))
    lock_memory: bool = param(False, 'Keep the process in RAM (mlockall)')
    cpu_affinity: int = param(-1, 'Core of the control loop; -1 for any', range=(-1, 1023))
    thread_priority: int = param(
        0, 'SCHED_FIFO priority of the control loop; 0 for usual scheduling', range=(0, 99)
    )


class Action(SuiteNode):
    """Denoises from leased rows; its control loop publishes `action_chunk`, `joint_trajectory`.

    standalone: in a process without a perception node it prefills for itself.
    """

    def __init__(self, standalone: bool = False, **arguments: object) -> None:
        super().__init__('action', ActionParams, *frame_params(standalone), **arguments)
        self._standalone = standalone
        self._period = PeriodMeter()
        self._execution_horizon, self._confidence = MeanMeter(), MeanMeter()
        self._too_late = 0  # frames for which not even the fewest Euler steps fitted

    def setup(self) -> None:
        self._now: tuple[JointState, float] | None = None  # and when it was received
        self._work: Future | None = None
        self._setup_commands(self.params.read(ActionParams))
        self.subscribe(JointState, 'joint_states', self._on_joints, qos.SENSOR)
        self._frames = HandleSource(self, self._standalone, self._on_handle)

    def _setup_commands(self, params: ActionParams) -> None:
        """What the control loop needs. Raises ValueError that names the parameter."""
        model, joints = self.host.model, self.suite.joint_names
        if len(joints) != model.action_dim:
            raise ValueError(
                f'parameter joint_names has {len(joints)} joints, '
                f'{model.name} moves {model.action_dim}'
            )
        self._executor(params)  # a limit that does not fit fails here
        self._params = params
        commands = qos.action(self.suite.period, model.chunk_size * model.action_dt)
        self._chunks = self.publisher(ActionChunkMsg, 'action_chunk', commands)
        self._trajectories = self.publisher(JointTrajectory, 'joint_trajectory', commands)
        if params.publish_setpoints:
            self._setpoints = self.publisher(Float64MultiArray, 'commands', commands)

    def _executor(self, params: ActionParams) -> TrajectoryExecutor:
        """Within the limits. Raises ValueError that names the parameter."""
        joints = self.suite.joint_names

        def each(name: str) -> np.ndarray:
            values = getattr(params, name)
            if len(values) not in (1, len(joints)):
                raise ValueError(
                    f'parameter {name} has {len(values)} values: give one, or one for each of the '
                    f'{len(joints)} joints'
                )
            return np.broadcast_to(np.array(values), len(joints))

        return TrajectoryExecutor(
            Limits(
                joints,
                each('lower_limits'),
                each('upper_limits'),
                each('velocity_limits'),
                each('acceleration_limits'),
                [POSITION] * len(joints),
            ),
            self.host.model.action_dt,
            max_tracking_error=each('max_tracking_error'),
            max_state_age=params.max_state_age,
            stop_after=params.stop_after,
        )

    def start(self) -> None:
        self._period.restart()
        self._source, self._steps, self._now, self._outcome = '', 0, None, {}
        self._start_control()
        self._frames.restart()
        self._part = ActionPart(
            self._control,
            lambda: self.get_clock().now().nanoseconds,
            self.host.model.action_dt,
            len(self.suite.joint_names),
        )
        session = self.host.session(self.robot)
        session.register(self._part)
        session.on_hold = self._control.hold

    def _start_control(self) -> None:
        p = self._params
        self._control = ControlLoop(
            self._executor(p),
            Guard(armed=True),
            self.suite.period,
            measured=self._measured,
            publish=self._publish,
            publish_setpoint=self._publish_setpoint if p.publish_setpoints else None,
            setpoint_rate=p.setpoint_rate,
            max_chunk_age=p.max_chunk_age,
            failed=lambda error: self.warn_throttled('chunk', f'chunk refused: {error}'),
            prepare=self._prepare,
        )
        self._control.start()

    def stop(self) -> None:
        self._control.stop()  # the motion ends first, whoever still computes
        session = self.host.session(self.robot)
        session.unregister(self._part)
        session.on_hold = lambda: None
        work, self._work = self._work, None
        if work is not None:
            work.cancel()
            wait([work], DRAIN)

    # ------------------------------------------------------------------ handles

    def _on_handle(self, handle: KvHandle) -> None:
        try:
            lease = self.host.engine.kv.acquire(handle)
        except Stale as error:
            self._frames.refuse(handle, error)
            return
        if self._work is not None:
            self._work.cancel()  # only the newest counts
        self._control.expect(handle.deadline)
        self._work = self.host.device.denoise(lease, handle.deadline)
        self._work.add_done_callback(lambda work: self._on_chunk(work, lease))

    def _on_chunk(self, work: Future[ActionChunk | None], lease: Lease) -> None:
        lease.release()
        try:
            chunk = work.result()
        except CancelledError:
            return
        except Exception as error:  # of the engine, whatever it is: the next frame is another try
            self.warn_throttled('denoise', f'denoising failed: {error!r}')
            return
        if chunk is None:
            self._too_late += 1
        else:
            policy = execution_horizon.parse(self.params.read(ActionParams).execution_horizon)
            self._control.offer(execution_horizon.judged(chunk, policy))

    def _on_joints(self, message: JointState) -> None:
        self._now = message, time.monotonic()

    # ------------------------------------------------------------------ on the loop's thread

    def _prepare(self) -> None:
        p = self._params
        self._outcome = realtime.apply(
            lock_memory=p.lock_memory,
            cpu_affinity=p.cpu_affinity,
            thread_priority=p.thread_priority,
        )
        if any(outcome.startswith('refused') for outcome in self._outcome.values()):
            self.log_warning('control loop', f'control loop: {self._outcome}')

    def _measured(self) -> Measured | None:
        if self._now is None:
            return None
        message, received = self._now
        try:
            return Measured(conversions.positions(message, self.suite.joint_names), received)
        except conversions.Refused as error:
            self.warn_throttled('joint state', f'joint state refused: {error}')
            return None

    def _publish(self, command: Command) -> None:
        if command.source == STOP != self._source and self.active:
            reason = self._control.guard.reason
            starved = f'no fresh chunk for {self._params.stop_after} control periods'
            self.log_error('stop', f'{reason or starved}: stop')
        now, names = self.get_clock().now().to_msg(), self.suite.joint_names
        if len(command.points):
            self._trajectories.publish(conversions.trajectory_message(command, names))
        self._chunks.publish(conversions.chunk_message(command, names, now))
        if command.source == FRESH:
            self._period.tick()
            self._steps = command.steps
            self._execution_horizon.add(command.execution_horizon)
            self._confidence.add(float(command.confidence.mean()))
        self._source = command.source

    def _publish_setpoint(self, setpoint: Setpoint) -> None:
        self._setpoints.publish(conversions.setpoint_message(setpoint.values))

    # ------------------------------------------------------------------ diagnostics

    def report(self) -> tuple[bytes, str, dict[str, object]]:
        counters = self._control.executor.counters
        values = {
            **self._period.values(),
            'deadline misses': counters.missed,
            'frames too late to denoise': self._too_late,
            'chunks': counters.takeovers,
            'chunks refused': counters.refused,
            'chunks blended': counters.blended,
            'values clamped': counters.clamped,
            'periods held': counters.held,
            'periods stopped': counters.stopped,
            'Euler steps': self._steps,
            'execution horizon mean (actions)': f'{self._execution_horizon.mean():.1f}',
            'confidence mean': f'{self._confidence.mean():.2f}',
            **self._outcome,
        }
        if self._control.guard.state == STOPPED:
            return ERROR, f'stopped: {self._control.guard.reason}', values
        if self._source == FRESH:
            return OK, 'acting', values
        level = ERROR if self._source == STOP else WARN
        return level, self._source or 'no frame yet', values


def main() -> None:
    """Run the executable `action`, in a process of its own."""
    executable.run(Action, standalone=True)


if __name__ == '__main__':
    main()
