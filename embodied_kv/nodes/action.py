"""The action node: denoises action chunks from rows of the KV arena, and moves the arm."""

from __future__ import annotations

import time
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, replace

import numpy as np
from std_msgs.msg import String

from embodied_kv.control import execution_horizon
from embodied_kv.control.chunk_plausibility import CLAMPED
from embodied_kv.control.command import FRESH, PREVIOUS, STOP, Command
from embodied_kv.control.confidence_signal import ConfidenceSignal
from embodied_kv.control.control_loop import ControlLoop
from embodied_kv.control.limits_from_contract import (
    confine_from_contract,
    limits_from_contract,
    linear_joints,
    relative_targets,
    tracking_errors,
)
from embodied_kv.control.rtc import RealTimeChunking
from embodied_kv.control.safety_state_machine import STOPPED, RefusedError, SafetyStateMachine
from embodied_kv.control.tracking import StandstillTimer
from embodied_kv.control.trajectory_executor import TrajectoryExecutor
from embodied_kv.kv.handle import KvHandle, Lease, StaleHandleError
from embodied_kv.msg import ActionChunk as ActionChunkMsg
from embodied_kv.nodes.common import conversions, executable, qos
from embodied_kv.nodes.common.lifecycle_node import ERROR, OK, WARN, SuiteNode
from embodied_kv.nodes.common.publishers import SinglePublishers
from embodied_kv.nodes.common.statistics import MeanMeter, PeriodMeter
from embodied_kv.nodes.control.arm_outputs import ArmOutputs
from embodied_kv.nodes.control.chunk_path import ChunkPath
from embodied_kv.nodes.control.control_services import ControlServices
from embodied_kv.nodes.control.controller_states import SpeedScaling
from embodied_kv.nodes.control.measured_joints import MeasuredJoints
from embodied_kv.nodes.control.params import ActionParams
from embodied_kv.nodes.control.robot_description import RobotDescription
from embodied_kv.nodes.control.session_parts import ActionPart
from embodied_kv.nodes.observation.clock import WorldClock
from embodied_kv.nodes.perception import Perception
from embodied_kv.session.participant import Participant
from embodied_kv.types import ActionChunk, Guide

CHECK_PERIOD = 0.5  # s between two checks for other publishers of commands
RESPAWNED = (
    'parameter armed is ignored, because the previous process ended unexpectedly or while the arm '
    'was stopped; call control/arm'
)


@dataclass(eq=False)
class _Frame:
    """A frame that is being denoised.

    Args:
        lease: The lease of its row.
        observed: Moment (s) of its observation.
        control: The control loop that executes its chunk.
        guide: The action prefix that the chunk continues.
    """

    lease: Lease
    observed: float
    control: ControlLoop
    guide: Guide | None = None


class Action(SuiteNode, Participant):
    """Lifecycle node that denoises leased rows, moves the arm and publishes `action_chunk`.

    Args:
        own: Dataclasses of further parameters of a subclass.
    """

    def __init__(self, *own: type, **arguments: object) -> None:
        super().__init__('action', ActionParams, *own, **arguments)
        self._period = PeriodMeter()
        self._execution_horizon, self._confidence = MeanMeter(), MeanMeter()
        self._signal = ConfidenceSignal()
        self._safety = SafetyStateMachine()  # one per process, so a stop outlives transitions
        self._too_late = 0  # frames whose deadline was too close even for the fewest Euler steps
        self._work: Future | None = None
        self._part: ActionPart | None = None  # while the control loop runs
        self._is_controlled = False  # the control loop runs
        self._is_ending = False  # the process ends
        self._fault = ''  # for which the arm was disarmed

    def setup(self) -> None:
        self._work = None
        self._setup_commands(self.params.read(ActionParams))
        self._join_session()

    def _join_session(self) -> None:
        """Join the session until cleanup.

        The safety state machine must know the instruction before the arm moves.
        """
        participants = self.host.session(self.robot).participants
        participants.join(self)
        self._release.callback(participants.leave, self)

    def _setup_commands(self, params: ActionParams) -> None:
        """Set up everything that the control loop needs. Raises ValueError."""
        self._params, contract = params, self.embodiment.contract
        self._signal = ConfidenceSignal()
        self._world = WorldClock(self.get_clock())
        self._urdf = RobotDescription(
            self, params.robot_description, self._safety, wanted=bool(params.tool_frame)
        )
        self.description = self._urdf.text
        limits = self._executor().limits
        commands = qos.action(self.host.model.chunk_size * contract.dt)
        self._chunks = self.publisher(ActionChunkMsg, 'action_chunk', commands)
        self._joints = MeasuredJoints(self, params.max_joint_state_age, limits)
        self._outputs = ArmOutputs(
            self,
            self.embodiment.outputs,
            commands,
            params.setpoint_rate,
            self._is_stamped,
            limits,
        )
        self._single = SinglePublishers(self, 'stop all nodes but one, or move them')
        watched = ['action_chunk', *self._outputs.topics]
        self.every(CHECK_PERIOD, lambda: self._single.check(watched))
        self._speed = SpeedScaling(self, self._world.now)
        self.subscribe(
            String,
            'instruction',
            lambda m: self.on_instruction(m.data),
            qos.INSTRUCTION,
            always=True,
        )
        self._stillness = StandstillTimer(limits.velocity)
        self._control_services = ControlServices(
            self,
            self._safety,
            params.shadow,
            contract,
            self._world.now,
            self._stands,
            params.standstill_timeout,
        )
        self._release.callback(self._control_services.close)
        tool = params.tool_frame
        self._path = ChunkPath(self, tool, self.description) if tool else None

    def _stands(self) -> float:
        """Return for how long (s) the arm has stood still; called by the control services."""
        measured = self._joints.now()
        positions = None if measured is None else measured.position
        return self._stillness.seconds(positions, time.monotonic())

    def _executor(self) -> TrajectoryExecutor:
        """Return a new executor within the limits. Raises LimitError."""
        p, robot = self._params, self.embodiment
        errors, limits = tracking_errors(robot), limits_from_contract(robot, self.description)
        return TrajectoryExecutor(
            limits,
            robot.contract.dt,
            max_tracking_error=np.full_like(errors, np.inf) if p.shadow else errors,
            max_relative_target=np.inf if p.shadow else relative_targets(robot),
            linear=linear_joints(robot, self.description),
            max_joint_state_age=p.max_joint_state_age,
            max_open_loop=p.max_open_loop,
            missed_chunk_limit=p.missed_chunk_limit,
            confine=confine_from_contract(robot, self.description, limits),
        )

    @property
    def is_latched(self) -> bool:
        return self._safety.state == STOPPED

    def start(self) -> None:
        self._period.restart()
        if self.respawned and self._params.armed:
            self.log_warning('respawned', RESPAWNED)
        self._source, self._in_time, self._steps = '', False, 0
        self._outcome: dict[str, str] = {}
        self._latest = self._world.now()
        if not self._params.shadow:
            self._outputs.zero()  # before the control loop starts
        self._start_control(self._params.armed and not self.respawned)
        self._enter_session()

    def _enter_session(self) -> None:
        self._register()
        self._safety.watch(self._hold_compiler)
        self._hold_compiler()
        self.host.frames(self.robot).listen(self._on_handle, first=True)

    def _register(self) -> None:
        """Register the leftover actions as a part of capsules."""
        self._part = ActionPart(
            self._control,
            lambda: self.get_clock().now().nanoseconds,
            self.embodiment.contract.dt,
            self.embodiment.axes,
        )
        self.host.session(self.robot).register(self._part)

    def _hold_compiler(self) -> None:
        self.host.hold_compiler(self.robot, self._safety.is_armed)

    def _log_fault(self) -> None:
        """Log the fault for which the arm was disarmed, once."""
        before, self._fault = self._fault, self._safety.fault
        if self._fault and not before:
            self.log_error('disarmed', f'arm disarmed: {self._fault}; arm it')

    def _leave_session(self) -> None:
        self.host.frames(self.robot).unlisten(self._on_handle)
        self._unregister()

    def _unregister(self) -> None:
        if self._part is not None:  # None if `start` has failed
            self.host.session(self.robot).unregister(self._part)
        self._part = None

    def _start_control(self, armed: bool) -> None:
        p = self._params
        now = self._world.now()
        armed = armed and not (
            self._control_services.estops.problem(now) or self._urdf.problem(now)
        )
        self._safety.begin(now, armed=armed or p.shadow)
        self._rtc = self._real_time_chunking()
        follow = self._outputs.follow_setpoints and not p.shadow
        executor = self._executor()
        self._control = ControlLoop(
            executor,
            self._safety,
            self.suite.period,
            measured=self._joints.now,
            unknown=self._joints.problem,
            publish=self._publish,
            publish_setpoint=self._outputs.setpoint if follow else None,
            setpoint_rate=p.setpoint_rate,
            setpoint_joints=self._outputs.setpoint_joints(executor.joints),
            max_chunk_age=p.max_chunk_age,
            resume_within=p.resume_within,
            rtc=self._rtc,
            by_execution=self._by_execution,
            speed=self._speed.share,
            fault=lambda: '' if p.shadow else self._outputs.problem(),
            sent=self._outputs.watch,
            explain=self._outputs.explanation,
            failed=self._refused,
            noticed=lambda report: self.log_warning('interruption', report),
            prepare=self._prepare,
            clock=self._world.now,
        )
        self._safety.require(self._control_services.estops.problem)
        self._safety.require(self._urdf.problem)
        self._safety.watch(self._control_services.publish_state)
        self._safety.watch(self._log_fault)
        self._control_services.attach(self._control)
        self._control.start()
        self._is_controlled = True

    def _real_time_chunking(self) -> RealTimeChunking | None:
        """Return the configuration of real-time chunking; None if it is off."""
        engine = self.host.engine
        return RealTimeChunking.of(engine.config, self.host.model, engine.budget.allowed)

    @property
    def _by_execution(self) -> bool:
        """Whether the next chunk is due at the end of an execution, not once per period."""
        return False

    def brake(self) -> None:
        if self.active:
            self._is_ending = True
            self._control.stop()

    def stop(self) -> None:
        try:
            self._stop_control()
        finally:
            self._leave_session()
            work, self._work = self._work, None
            if work is not None:
                work.cancel()

    def _stop_control(self) -> None:
        """Brake the arm without waiting for running computations."""
        try:
            if self._is_controlled:
                self._control.stop()
            if not self._params.shadow:
                self._outputs.zero()
        finally:
            self._is_controlled = False
            self._safety.end()
        self._control_services.attach(None)
        if self._path is not None:
            self._path.show()

    def _rewind(self) -> None:
        if self.active and self._world.now() < self._latest:
            self._latest = self._world.now()
            self._restart_control()

    def _restart_control(self) -> None:
        """Restart control after the clock was set back, for example by a restarted simulation."""
        self.log_info('clock', 'clock was set back; motions and chunks are dropped')
        armed = self._safety.is_armed
        self._control.abandon()
        self._joints.restart()
        self._leave_session()
        self._start_control(armed)
        self._enter_session()

    def _refused(self, error: Exception) -> None:
        """Log a refused chunk, unless the arm must stand: then `control/state` has the reason."""
        if self._safety.is_meant_to_move or not isinstance(error, RefusedError):
            self.warn_throttled('chunk', f'chunk refused: {error}')

    # ------------------------------------------------------------------ session

    def on_instruction(self, instruction: str) -> None:
        self._safety.set_instruction(instruction, self._world.now())
        self._signal.restart()

    def on_hold(self) -> None:
        if self._part is not None:
            self._control.hold()

    # ------------------------------------------------------------------ handles

    def _on_handle(self, handle: KvHandle) -> None:
        """Submit the denoising of a frame; called on the engine thread."""
        if not self.active:
            return
        try:
            lease = self.host.engine.kv.acquire(handle)
        except StaleHandleError as error:
            self.warn_throttled('stale handle', f'handle refused: {error}')
            return
        if self._work is not None:
            self._work.cancel()  # the newest frame replaces it
        now, control = self._world.now(), self._control
        if now < self._latest:  # the clock was set back; the node's thread restarts control
            lease.release()
            self.submit(self._surviving(self._rewind))
            return
        self._latest = now
        deadline = self._world.from_steady(handle.deadline)
        control.expect(deadline)
        observed = deadline - control.allowed
        if self._world.is_simulated:
            observed = self._world.moment(handle.stamp)
        frame = _Frame(lease, observed, control)
        self._work = self.host.device.denoise(lease, handle.deadline, lambda: self._guide(frame))
        self._work.add_done_callback(lambda work: self._on_chunk(work, frame))

    def _guide(self, frame: _Frame) -> Guide | None:
        """Return the action prefix, in the policy's units, of a chunk whose denoising begins."""
        frame.guide = guide = frame.control.guide(frame.observed)
        return guide and replace(guide, actions=self.embodiment.actions.policy(guide.actions))

    def _on_chunk(self, work: Future[ActionChunk | None], frame: _Frame) -> None:
        frame.lease.release()
        try:
            self._offer(work, frame)
        finally:
            self.host.engine.kv.reduce(frame.lease.handle)

    def _offer(self, work: Future[ActionChunk | None], frame: _Frame) -> None:
        """Offer the chunk of a frame to the control loop, unless it failed or is refused."""
        try:
            chunk = work.result()
        except CancelledError:
            return
        except Exception as error:  # any error of the engine; the next frame may succeed
            self.warn_throttled('denoise', f'denoising failed: {error!r}')
            return
        if chunk is None:
            self._too_late += 1
        else:
            control = frame.control  # a control loop that was replaced executes nothing
            deadline = frame.observed + control.allowed
            if not self._is_refused(chunk, control):
                chunk = self._judged(chunk, deadline)
                control.offer(chunk, guide=frame.guide)
                self._validate(chunk, frame.observed)

    def _is_refused(self, chunk: ActionChunk, control: ControlLoop) -> bool:
        """Refuse a chunk if most values are far outside the contract's clamps; return whether."""
        share = self.embodiment.actions.outside(chunk.values)
        if share > CLAMPED:
            control.refuse(
                f'{share:.0%} of its values are far outside the clamps of the contract, '
                f'{CLAMPED:.0%} are allowed: check the unit of its actions'
            )
        return share > CLAMPED

    def _judged(self, chunk: ActionChunk, deadline: float) -> ActionChunk:
        """Return the chunk in SI units, with its execution horizon and this deadline."""
        chunk = replace(chunk, values=self.embodiment.actions.si(chunk.values), deadline=deadline)
        return execution_horizon.with_execution_horizon(chunk, self._policy())

    def _validate(self, chunk: ActionChunk, observed: float) -> None:
        """Measure whether the confidence of actions carries a signal, if the horizon uses it."""
        if not isinstance(self._wanted_policy(), execution_horizon.Confidence):
            return
        was_absent = self._signal.is_absent
        self._signal.see(chunk, observed)
        if self._signal.is_absent and not was_absent:
            self.log_warning(
                'confidence',
                'the confidence of actions does not predict how much the next chunk revises them: '
                f'{self._signal}, chance is 0.5; the execution horizon is {self._policy()} now',
            )

    def _policy(self) -> execution_horizon.Policy:
        """Return the policy of the execution horizon; constant if confidence has no signal."""
        return self._signal.validated(self._wanted_policy())

    def _wanted_policy(self) -> execution_horizon.Policy:
        """Return the policy of the execution horizon, from the parameter or the contract."""
        horizon = self.embodiment.contract.execution_horizon
        own = f'static:{horizon}' if horizon else 'whole'
        return execution_horizon.parse(self.params.read(ActionParams).execution_horizon or own)

    # ------------------------------------------------------------------ control loop's thread

    def _is_stamped(self) -> bool:
        """Return whether trajectories carry their start time.

        A controller skips the transport delay of a stamped trajectory at full speed. With a low
        speed scaling it would then be ahead of the reference trajectory.
        """
        return self._joints.clocks_agree() and self._speed.share() > 0.5

    def _prepare(self) -> None:
        self._outcome = self._params.apply_real_time()
        if any(outcome.startswith('refused') for outcome in self._outcome.values()):
            self.log_warning('control loop', f'control loop: {self._outcome}')

    def _publish(self, command: Command) -> None:
        try:
            if not self._params.shadow:
                self._outputs.command(command)
        finally:
            if command.source == STOP != self._source and self.active:
                self._log_stop()
        now, names = self.get_clock().now().to_msg(), self.embodiment.axes
        self._chunks.publish(conversions.chunk_message(command, names, now))
        if self._path is not None:
            self._path.see(command)
        self._control_services.goals.note_command(command)
        if len(command.points) and command.source in (FRESH, PREVIOUS):
            self._control_services.note_motion()
        if command.source == FRESH:
            self._period.tick()
            self._steps = command.steps
            self._execution_horizon.add(command.execution_horizon)
            self._confidence.add(float(command.confidence.mean()))
        self._source, self._in_time = command.source, command.deadline_met

    def _log_stop(self) -> None:
        """Log why the arm stops, unless it was meant to stand or the process ends."""
        safety = self._safety
        if self._is_ending:
            return
        if safety.state == STOPPED or safety.is_meant_to_move:
            starved = f'no fresh chunk for {self._params.missed_chunk_limit} control periods'
            missing = safety.missing(self._world.now())
            why = safety.reason or '; '.join(filter(None, (starved, missing)))
            self.log_error('stop', f'{why}: stop')

    # ------------------------------------------------------------------ diagnostics

    def report(self) -> tuple[bytes, str, dict[str, object]]:
        executor = self._control.executor
        counters = executor.counters
        values = {
            **self._period.values(),
            'state': self._safety.state,
            'deadline misses': counters.missed,
            'frames too late to denoise': self._too_late,
            'chunks': counters.takeovers,
            'chunks refused': counters.refused,
            'chunks blended': counters.blended,
            'values clamped': counters.clamped,
            'periods held': counters.held,
            'periods stopped': counters.stopped,
            'chunks later than their delay': counters.late,
            'lag of the arm (s)': f'{executor.lag:.3f}',
            **(self._rtc.report() if self._rtc else {}),
            **self._single.values(),
            'Euler steps': self._steps,
            'execution horizon mean (actions)': f'{self._execution_horizon.mean():.1f}',
            'confidence mean': f'{self._confidence.mean():.2f}',
            **({'confidence signal': str(self._signal)} if self._signal.pairs else {}),
            **self._outcome,
        }
        if self._safety.state == STOPPED:
            return ERROR, f'stopped: {self._safety.reason}', values
        if missing := self._safety.missing(self._world.now()):
            return WARN, missing, values
        if problem := self._single.problem:
            return WARN, problem, values
        if self._source == FRESH or (self._source == PREVIOUS and self._in_time):
            return OK, 'shadow' if self._params.shadow else 'acting', values
        return ERROR if self._source == STOP else WARN, self._source or self._safety.state, values


def main() -> None:
    """Run the executable `action`: the nodes perception and action in one process."""
    executable.run(perception=Perception, action=Action)


if __name__ == '__main__':
    main()
