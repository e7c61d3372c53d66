"""The action node: each frame's handle becomes a chunk, and every control period a command."""

from __future__ import annotations

from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass

import numpy as np
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory

from embodied_kv.control import execution_horizon, realtime
from embodied_kv.control.command import Command
from embodied_kv.control.control_loop import ControlLoop
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
    max_joint_step: tuple[float, ...] = param(
        (0.5,),
        'Maximum joint step from one action to the next, one or one per joint, rad or m',
        range=(1e-6, 1e6),
        old='max_jump',
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
        'Publish the set-point of each action on `commands`, for forward controllers',
        old='tick_commands',
    )
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
        self._now: JointState | None = None
        self._work: Future | None = None
        self._setup_commands(self.params.read(ActionParams))
        self.subscribe(JointState, 'joint_states', self._on_joints, qos.SENSOR)
        self._frames = HandleSource(self, self._standalone, self._on_handle)

    def _setup_commands(self, params: ActionParams) -> None:
        """What the control loop needs. Raises ValueError that names the parameter."""
        model, joints = self.host.model, self.embodiment.axes
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

        def each(name: str) -> np.ndarray | float:
            values = getattr(params, name)
            if len(values) not in (1, len(self.embodiment.axes)):
                raise ValueError(
                    f'parameter {name} has {len(values)} values: give one, or one for each of the '
                    f'{len(self.embodiment.axes)} joints'
                )
            return np.array(values) if len(values) > 1 else values[0]

        return TrajectoryExecutor(
            len(self.embodiment.axes),
            self.host.model.action_dt,
            lower=each('lower_limits'),
            upper=each('upper_limits'),
            max_joint_step=each('max_joint_step'),
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
            len(self.embodiment.axes),
        )
        session = self.host.session(self.robot)
        session.register(self._part)
        session.on_hold = self._control.hold

    def _start_control(self) -> None:
        self._control = ControlLoop(
            self._executor(self._params),
            self.suite.period,
            position=self._position,
            publish=self._publish,
            publish_setpoint=self._publish_setpoint,
            failed=lambda error: self.warn_throttled('chunk', f'chunk refused: {error}'),
            prepare=self._prepare,
        )
        self._control.start()

    def stop(self) -> None:
        session = self.host.session(self.robot)
        session.unregister(self._part)
        session.on_hold = lambda: None
        work, self._work = self._work, None
        if work is not None:
            work.cancel()
            wait([work], DRAIN)
        self._control.stop()

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
        self._now = message

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

    def _position(self) -> np.ndarray | None:
        if self._now is None:
            return None
        try:
            return conversions.positions(self._now, self.embodiment.axes)
        except conversions.Refused as error:
            self.warn_throttled('joint state', f'joint state refused: {error}')
            return None

    def _publish(self, command: Command) -> None:
        if command.source == STOP != self._source and self.active:
            self.log_error(
                'stop', f'no fresh chunk for {self._params.stop_after} control periods: stop'
            )
        now, names = self.get_clock().now().to_msg(), self.embodiment.axes
        if len(command.points) or command.source == STOP:  # without points: stay where you are
            self._trajectories.publish(conversions.trajectory_message(command, names, now))
        self._chunks.publish(conversions.chunk_message(command, names, now))
        if command.source == FRESH:
            self._period.tick()
            self._steps = command.steps
            self._execution_horizon.add(command.execution_horizon)
            self._confidence.add(float(command.confidence.mean()))
        self._source = command.source

    def _publish_setpoint(self, values: np.ndarray) -> None:
        if self._params.publish_setpoints:
            self._setpoints.publish(conversions.setpoint_message(values))

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
        if self._source == FRESH:
            return OK, 'acting', values
        level = ERROR if self._source == STOP else WARN
        return level, self._source or 'no frame yet', values


def main() -> None:
    """Run the executable `action`, in a process of its own."""
    executable.run(Action, standalone=True)


if __name__ == '__main__':
    main()
