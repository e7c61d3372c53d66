"""The thread that moves the arm: it executes chunks while the safety state machine permits it.

The control loop uses no messages and receives finished chunks. While the arm moves, it publishes
one command per control period: a fresh chunk as soon as it arrives, otherwise the status of the
previous chunk, up to its execution horizon. A period without a fresh chunk counts as missed. With
real-time chunking, which expects late chunks, it counts only if the running chunk has ended.

Every motion ends at rest. The control loop sends nothing to an arm that stands, so that other
programs may use its controllers. A stop, a disarming, a takeover and the end of the thread first
brake the arm, and the braking is sent several times. After a takeover, the controllers are handed
over once the arm is at rest.

The control loop disarms an arm that does not follow its reference trajectory, that cannot reach a
command, or that stood longer than `resume_within` although it was meant to move.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from embodied_kv.control.command import (
    FRESH,
    HOLD,
    STOP,
    Command,
    LeftoverActions,
    Measured,
    Setpoint,
)
from embodied_kv.control.command_publisher import CommandPublisher
from embodied_kv.control.rtc import RealTimeChunking
from embodied_kv.control.safety_state_machine import (
    ARMED,
    STOPPED,
    RefusedError,
    SafetyStateMachine,
)
from embodied_kv.control.standstill import StandstillMonitor
from embodied_kv.control.tracking import STANDS
from embodied_kv.control.trajectory_executor import PAUSED_SPEED, TrajectoryExecutor
from embodied_kv.types import ActionChunk, Guide

MONITOR_PERIOD = 0.02  # longest time (s) between two checks of a moving arm
STOP_TIMEOUT = 5.0  # s of the steady clock that `stop` waits for an arm at rest
SETTLE_TIME = 0.01  # s that `guide` waits for an offered chunk to take over
HAND_OVER_AFTER = 0.2  # s from the end of the motion until controllers are handed over
FOREIGN = 1.0  # s after a stop in which an arm that another program moves is braked
HOLD_TIME = 1.0  # s for which an arm that does not follow is held at its measured position
MEASUREMENT_REUSE = 0.004  # s for which a measurement is reused
MAX_LATENESS = 0.3  # longest time (s) from the computation of a command until it is sent

Work = Callable[[float], None]
Offer = tuple[ActionChunk, float, Guide | None]  # chunk, moment of its observation, action prefix


class ControlLoop(threading.Thread):
    """Thread that moves the arm while the safety state machine permits it.

    Args:
        executor: The motion.
        safety: The safety state machine.
        period: Control period (s).
        measured: Returns the measured arm, or None while it is unknown.
        unknown: Returns why the position of a joint is unknown; '' if all are known.
        publish: Takes each Command, on this thread.
        failed: Takes the reason why a chunk is not executed or a motion ended early.
        publish_setpoint: Takes set-points while the arm moves; None for a robot without
            controllers that follow them.
        setpoint_rate: Set-points per second.
        setpoint_joints: Joints whose controllers follow set-points, bool [joints]; None for none.
        prepare: Called first, on this thread.
        max_chunk_age: Longest time (s) from an observation until its chunk takes over.
        resume_within: Longest time (s) that the arm may stand without a fresh chunk before it is
            disarmed.
        rtc: Real-time chunking; None if it is off.
        by_execution: Whether the next chunk is due at the end of an execution instead of once per
            period. Real-time chunking implies it.
        speed: Returns the speed scaling of the trajectory controllers, 0 to 1.
        fault: Returns why the arm must not be commanded, such as a controller fault; '' if none.
        sent: Takes the reference position [joints] at each check of a moving arm.
        explain: Returns a possible cause for an arm that does not follow; '' if unknown.
        noticed: Takes a report when an interruption begins or ends.
        clock: Returns the moment (s).
    """

    def __init__(
        self,
        executor: TrajectoryExecutor,
        safety: SafetyStateMachine,
        period: float,
        *,
        measured: Callable[[], Measured | None],
        publish: Callable[[Command], None],
        failed: Callable[[Exception], None],
        unknown: Callable[[], str] = lambda: '',
        publish_setpoint: Callable[[Setpoint], None] | None = None,
        setpoint_rate: float = 100.0,
        setpoint_joints: NDArray[np.bool_] | None = None,
        prepare: Callable[[], None] = lambda: None,
        max_chunk_age: float = 1.0,
        resume_within: float = 3.0,
        rtc: RealTimeChunking | None = None,
        by_execution: bool = False,
        speed: Callable[[], float] = lambda: 1.0,
        fault: Callable[[], str] = lambda: '',
        sent: Callable[[NDArray[np.float64]], None] = lambda position: None,
        explain: Callable[[], str] = lambda: '',
        noticed: Callable[[str], None] = lambda report: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name='control loop', daemon=True)
        self.executor, self.safety, self._period = executor, safety, period
        self._measure, self._prepare, self._report_failure = measured, prepare, failed
        self._cached: tuple[float, Measured | None] = -math.inf, None
        self._publish, self._speed, self._fault = publish, speed, fault
        self._sent, self._explain = sent, explain
        self._commands = CommandPublisher(
            executor,
            self._measured,
            self._checked,
            publish_setpoint,
            setpoint_rate,
            np.zeros(executor.joints, bool) if setpoint_joints is None else setpoint_joints,
            self._keep,
        )
        self._max_chunk_age, self._rtc, self._clock = max_chunk_age, rtc, clock
        self._resume_within = resume_within
        self._by_execution = by_execution or rtc is not None
        self.allowed = rtc.delays.allowed if rtc else period  # s from observation to deadline
        self._wake, self._settled = threading.Condition(), threading.Event()
        self._settled.set()
        self._offered: Offer | None = None
        self._requests: list[Work] = []  # executed on this thread before the offer
        self._expected = -math.inf  # deadline of the newest frame that is being worked on
        self._deadline = math.inf  # end of the control period; inf before the first frame
        self._changed = self._stopping = False  # a change is pending; the thread must end
        self._ends_by = math.inf  # s of the steady clock, set by `stop`
        self._holds_until = -math.inf  # moment until which a faulty arm is held
        self._turns, self._in_turn = 0, False  # completed turns; whether one is running
        self._delivers = True  # whether the last turn published the commands it had to
        self._stops = safety.stops  # stops that were executed
        self._began = self._worked = -math.inf  # begin of the present work, end of the last one
        self._is_abandoned = False
        self._keep()
        self._taken_at = -math.inf  # when a chunk took over
        self._paused_at = -math.inf  # when the robot last was not paused, or had no chunk
        self._foreign_until = -math.inf  # until then, an arm that another program moves is braked
        self._watched_until = -math.inf  # until then, a trajectory that was sent late is braked
        self._standstill = StandstillMonitor(
            executor, safety, resume_within, self._disarm, noticed
        )
        safety.require(lambda now: unknown() or executor.lost(now, self._measured()))
        safety.require(lambda now: fault())
        safety.require_to_arm(lambda now: executor.moves(self._measured()))
        safety.explain(self._standstill.idle_reason)
        safety.watch(self._wake_up)

    # ------------------------------------------------------------------ from any thread

    def expect(self, deadline: float) -> None:
        """Note that a chunk is being computed for this deadline."""
        with self._notifying():
            self._expected = deadline

    def guide(self, observed: float) -> Guide | None:
        """Return the action prefix (SI) for a chunk whose computation starts now.

        None if real-time chunking is off, the arm is not armed or no action is left.
        """
        if self._rtc is None or self.safety.state != ARMED:
            return None
        self._settled.wait(SETTLE_TIME)  # the previous chunk may have been offered just now
        now = self._clock()
        leftover = self.executor.rows(observed, self._rtc.delays.chunk_size, now)
        return self._rtc.guide(leftover, now - observed)

    def offer(
        self, chunk: ActionChunk, observed: float | None = None, guide: Guide | None = None
    ) -> None:
        """Execute a finished chunk on the thread of the control loop.

        Args:
            chunk: The chunk.
            observed: Moment of its observation, if its first action is due at another moment.
            guide: The action prefix that it continues.
        """
        began = chunk.deadline - self.allowed
        with self._notifying():
            self._offered = chunk, began if observed is None else observed, guide
            self._settled.clear()

    @property
    def is_idle(self) -> bool:
        """Whether no action is left to execute and no chunk was offered. From any thread."""
        settled = self._settled.is_set()  # read first, so that the plan contains its chunk
        return settled and not self.executor.plan.lasts(self._clock(), self.executor.dt)

    def refuse(self, reason: str) -> None:
        """Count and report a chunk that was refused before it was offered."""
        self._request(lambda now: self._reject(reason))

    def resume(self, leftover: LeftoverActions, stamp: int) -> None:
        """Start leftover actions of an earlier chunk now, until a fresh chunk takes over.

        Args:
            leftover: The actions.
            stamp: ROS time (ns) of now.
        """
        self._request(lambda now: self._resume(leftover, stamp, now))

    def hold(self) -> None:
        """Bring the arm to rest until a fresh chunk takes over."""
        self._request(lambda now: self._brake(HOLD, now))

    def leftover(self) -> LeftoverActions | None:
        """Return the remaining actions of the running chunk; None if there are none."""
        return self.executor.plan.leftover(self._clock())

    def _request(self, work: Work) -> None:
        with self._notifying():
            self._requests.append(work)

    def _wake_up(self) -> None:
        with self._notifying():
            pass

    @contextmanager
    def _notifying(self) -> Iterator[None]:
        """Make a change in the body and wake the thread up."""
        with self._wake:
            yield
            self._changed = True
            self._wake.notify_all()

    def abandon(self) -> None:
        """Send braking once and end the thread without waiting for the arm at rest.

        Used if the clock was set back.
        """
        self._request(lambda now: self._end_at_once(now))
        self.stop()

    def confirm(self, timeout: float) -> float | None:
        """Wait until the thread has executed the decisions made before this call.

        Args:
            timeout: Longest time (s) to wait.

        Returns:
            The time (s) until the arm is at rest, or None if the thread did not answer in time, or
            could not publish its commands.
        """
        with self._wake:
            until = self._turns + (2 if self._in_turn else 1)
            self._changed = True
            self._wake.notify_all()
            if not self._wake.wait_for(lambda: self._turns >= until, timeout):
                return None
            if not self._delivers:
                return None
        return max(0.0, self.executor.ends - self._clock())

    def unrest(self) -> str:
        """Return why the arm is not known to stand; '' if it is known. From any thread."""
        return self.executor.unrest(self._clock(), self._measured())

    def stop(self) -> None:
        """Brake at once and end the thread when the arm is at rest, at most after STOP_TIMEOUT.

        The timeout is needed for a simulation whose clock has stopped.
        """
        with self._notifying():
            self._stopping, self._ends_by = True, time.monotonic() + STOP_TIMEOUT
        if self.is_alive():
            self.join(STOP_TIMEOUT)

    # ------------------------------------------------------------------ the thread

    def run(self) -> None:
        self._prepare()
        pause: float | None = None
        while True:
            with self._wake:
                if not self._changed:
                    self._wake.wait(pause)
                stopping = self._stopping
            pause = self.turn()
            at_rest = not self.executor.is_moving(self._clock())
            if stopping and at_rest and self._commands.due == math.inf:
                return
            if stopping and time.monotonic() > self._ends_by:
                self._commands.cancel()
                return

    def turn(self) -> float | None:
        """Execute everything that is due now.

        Returns:
            The time (s) until something is due again; None if nothing is.
        """
        with self._wake:
            self._changed, self._in_turn = False, True
            self._worked = self._clock()
            offered, self._offered = self._offered, None
            asked, self._requests = self._requests, []
            if self._deadline == math.inf and self._expected > -math.inf:
                self._deadline = max(self._expected, self._clock())
        self._try(self._commands.catch_up)  # after a suspension the arm must not jump
        self._keep()
        self._try(self._standstill.check)
        obeyed = self._try(self._obey)
        for work in (
            self._monitor,
            *asked,
            lambda now: self._take(offered, now),
            self._end_period,
        ):
            self._try(work)
        sent = self._try(self._commands.send)
        with self._wake:
            self._delivers = obeyed and sent
            if self._offered is None:
                self._settled.set()
            self._turns, self._in_turn = self._turns + 1, False
            self._wake.notify_all()
        return self._pause(self._clock())

    def _pause(self, now: float) -> float | None:
        due = min(self._deadline_now(), self._commands.due, self._standstill.due)
        holds = now < self._holds_until and self.safety.state != ARMED
        watches = now < self._watched_until or self._watches_foreign(now)
        if self.executor.is_moving(now) or self._hands_over or holds or watches:
            due = min(due, now + MONITOR_PERIOD)
        return None if due == math.inf else max(0.0, due - now)

    def _try(self, work: Work) -> bool:
        """Do a piece of work, unless the process was suspended during it or just before.

        Returns whether it raised no error.
        """
        fails = False
        self._began = self._clock()
        if self._began - self._worked > MAX_LATENESS:
            self._undo(self._worked, self._began)
        try:
            work(self._began)
        except Exception as error:  # the loop must continue: the next turn tries again
            fails = True
            self._report_failure(error)
        self._worked = self._clock()
        if self._worked - self._began > MAX_LATENESS:
            self._undo(self._began, self._worked)
        return not fails

    def _undo(self, since: float, now: float) -> None:
        """Undo the motion that was not sent before the process was suspended, and brake.

        That motion starts at an old position, because the arm has executed what was sent before. A
        message that was being sent may reach the controller only now.
        """
        self._began = now
        try:
            if self._is_abandoned:
                self._end_at_once(now)
                return
            acted = not self._commands.is_sent
            self._commands.restore(self._kept)
            acted = acted or self.executor.ends > since
            self._commands.catch_up(now)
            if acted or self.safety.state == STOPPED:
                self._watched_until = now + self.executor.max_open_loop
            if self._stopping:
                self._ends_by = max(self._ends_by, time.monotonic() + HOLD_TIME)
            if since and self.safety.is_meant_to_move and now - since > self._resume_within:
                allowed = f'resume_within is {self._resume_within:g} s'
                self._disarm(f'the process was suspended for {now - since:.1f} s; {allowed}')
            self._brake(HOLD if self.safety.state == ARMED else STOP, now)
            if acted or self.safety.state == STOPPED:
                self._commands.publish_standstill(now)
            self._report_failure(RefusedError('the process was suspended; the arm brakes'))
        except Exception as error:
            self._report_failure(error)
        self._keep()

    def _deadline_now(self) -> float:
        """Return the end of the period, or that of the newest frame, at most one period later."""
        of_frame = self._expected - self.allowed + self._period
        return max(self._deadline, min(of_frame, self._deadline + self._period))

    def _measured(self) -> Measured | None:
        """Return the measured arm, cached for MEASUREMENT_REUSE. From any thread."""
        now, (moment, seen) = self._clock(), self._cached
        if not moment <= now < moment + MEASUREMENT_REUSE:
            seen = self._measure()
            self._cached = now, seen
        return seen

    # ------------------------------------------------------------------ safety

    def _obey(self, now: float) -> None:
        """Brake if the state machine forbids motion; hand over once the arm is at rest."""
        state, stops = self.safety.state, self.safety.stops
        if stops != self._stops:
            self._stops = stops
            self._foreign_until = -math.inf if self.executor.is_moving(now) else now + FOREIGN
            self._brake(STOP, now, foreign=True)
            self._commands.publish_standstill(now)
        elif self._watches_foreign(now):
            if now >= self.executor.ends + HAND_OVER_AFTER:  # it no longer measures our motion
                self.executor.brake(now, STOP, self._measured(), foreign=True)
                if self.executor.is_moving(now):
                    self._commands.publish_braking(now)
        elif (state != ARMED or self._stopping) and self._commands.source not in ('', STOP):
            self._brake(STOP, now)
        if self._hands_over and now >= self.executor.ends + HAND_OVER_AFTER:
            self._commands.hand_over(now)
            self.executor.drop()
            self._keep()

    def _watches_foreign(self, now: float) -> bool:
        """Whether another program may still move the arm after a stop.

        Its measurement may have been too old to brake from, or that of a joint may have lacked.
        """
        is_braked = self.executor.ends > self._foreign_until - FOREIGN
        if is_braked and not self.executor.is_partial:
            return False
        return self.safety.state == STOPPED and now < self._foreign_until

    @property
    def _hands_over(self) -> bool:
        """Whether an operator has taken over and the controllers are not handed over yet."""
        taken = self.safety.is_taken_over and self.safety.state != STOPPED
        return taken and self.executor.has_reference

    def _end_at_once(self, now: float) -> None:
        self._is_abandoned = True
        self.executor.brake(now, STOP)
        self._commands.end_at_once(now)
        self.executor.drop()

    def _monitor(self, now: float) -> None:
        """End the motion if the arm does not follow or something is missing."""
        measured, waited = self._measured(), self.executor.waits
        speed = self._speed()
        reason = self.executor.monitor(now, measured, speed)
        if not self.executor.is_moving(now):
            holds = now < self._holds_until and self.safety.state != ARMED
            if holds and not self.executor.is_held(measured):
                self.executor.hold(now, measured)  # it stopped before the braking motion ended
                self._commands.publish_braking(now)
            elif self._was_sent_late(now, measured):
                self._brake(HOLD if self.safety.state == ARMED else STOP, now, foreign=True)
            return
        if reason:
            reason = self._explained(reason)
        if reason := reason or (self._fault() if self.safety.state == ARMED else ''):
            self._disarm(reason)
            self._hold(now, measured)
            return
        positions = self.executor.due(now).positions
        if positions is not None and speed > PAUSED_SPEED:  # a paused controller stands
            self._sent(positions)
        if self.executor.waits or waited:
            self._commands.resend(now, at_once=self.executor.waits != waited)
        if speed > PAUSED_SPEED or not self.executor.plan:
            self._paused_at = now
        if now - max(self._paused_at, self._taken_at) > self._resume_within:
            self._brake(HOLD, now)  # its actions are old when the pause ends
            return
        acts = self.safety.state == ARMED and self.executor.plan
        if acts and (missing := self.safety.missing(now)):
            self._report_failure(RefusedError(f'the arm stands: {missing}'))
            self._brake(HOLD, now)

    def _was_sent_late(self, now: float, measured: Measured | None) -> bool:
        """Return whether the arm moves although the motion sent before a suspension has ended."""
        taken = self.safety.is_taken_over and self.safety.state != STOPPED
        if now >= self._watched_until or taken or measured is None:
            return False
        return bool((np.abs(measured.agreed) > STANDS).any())

    def _hold(self, now: float, measured: Measured | None) -> None:
        """Hold the measured position for HOLD_TIME, because the arm does not follow."""
        self._holds_until = now + HOLD_TIME
        self.executor.hold(now, measured)
        self._commands.publish_braking(now)

    def _explained(self, reason: str) -> str:
        """Return the reason with its explanation; an error in it must not prevent the stop."""
        try:
            why = self._explain()
        except Exception as error:
            self._report_failure(error)
            return reason
        return f'{reason}; {why}' if why else reason

    def _disarm(self, fault: str) -> None:
        if self.safety.state == ARMED:
            self.safety.disarm(fault)
            self._report_failure(RefusedError(f'disarmed: {fault}'))

    def _checked(self, command: Command) -> None:
        """Publish a command unless it is late, or the arm cannot reach its first point."""
        measured, now = self._measured(), self._clock()
        if now - self._began > MAX_LATENESS:  # `_undo` follows
            raise RefusedError('a command was not sent because the process was suspended')
        if len(command.points) and (measured is not None or command.source == FRESH):
            first = command.times[0], command.points[0]
            if reason := self.executor.unreachable(*first, measured):
                self._disarm(reason)
                self._hold(now, measured)
                return
        self._publish(command)
        if len(command.points):
            self._commands.note_sent()
        self._keep()

    def _keep(self) -> None:
        """Store the motion for `_undo` once a part of it was sent."""
        if self._commands.is_sent:
            self._kept = self._commands.state()

    # ------------------------------------------------------------------ chunks

    def _take(self, offered: Offer | None, now: float) -> None:
        if offered is None:
            return
        try:
            self._execute(*offered, now)
        except ValueError as error:
            self._standstill.refused = str(error)
            raise

    def _reject(self, reason: str) -> None:
        self._standstill.refused = reason
        self.executor.counters.refused += 1
        raise RefusedError(reason)

    def _execute(
        self, chunk: ActionChunk, observed: float, guide: Guide | None, now: float
    ) -> None:
        if reason := self._refusal(observed, now):
            self.executor.counters.refused += 1
            raise RefusedError(reason)
        began = frame = chunk.deadline - self.allowed
        if self._rtc is not None:  # an arm that stood skips no action
            began += max(0.0, now - max(self.executor.ends, observed))
        taken = self.executor.take_over(chunk, began, now, self._measured(), observed)
        if taken.values is None:  # the running motion continues
            raise RefusedError(taken.reason)
        if self._rtc is not None:
            self._rtc.delays.observe(now - observed)
        if guide is not None and taken.first > guide.delay:
            self.executor.counters.late += 1
        self._deadline = max(min(self._deadline, now + self._period), frame + 2 * self._period)
        self._taken_at = now
        self._standstill.note_motion()
        self._commands.publish_fresh(chunk, taken, now)

    def _refusal(self, observed: float, now: float) -> str:
        """Return why a chunk of this observation is not executed; '' if it is."""
        if self._stopping:
            return 'the control loop ends'
        if self.safety.state != ARMED:
            return f'the arm is {self.safety.state}'
        if missing := self.safety.missing(now):
            return missing
        if observed < self.safety.since:
            return (
                'it answers an observation from before the arm was armed or given back, or its '
                'instruction was cleared'
            )
        if now - observed > self._max_chunk_age:
            return (
                f'it answers an observation {now - observed:.2f} s old; max_chunk_age is '
                f'{self._max_chunk_age:g} s'
            )
        return ''

    def _resume(self, leftover: LeftoverActions, stamp: int, now: float) -> None:
        reason, observed = self._refusal(now, now), now - leftover.age
        if not reason:
            reason = self.executor.resume(leftover, observed, now, self._measured())
        if reason:
            raise RefusedError(f'what was left of a chunk is not resumed: {reason}')
        self._taken_at = now
        self._standstill.note_motion()
        self._commands.publish_resumed(leftover, self.executor.plan.actions, stamp, now)

    def _brake(self, source: str, now: float, foreign: bool = False) -> None:
        """Bring the arm to rest. foreign: also an arm that another program moves."""
        moves = self.executor.is_moving(now)
        self.executor.brake(now, source, self._measured(), foreign)
        if moves or self.executor.is_moving(now):
            self._commands.publish_braking(now)
        else:
            self._commands.report(source, now)

    def _end_period(self, now: float) -> None:
        """Report the status at the end of a period without a fresh chunk, if the arm moved."""
        if now < self._deadline_now():
            return
        self._deadline = max(self._deadline_now(), now - self._period) + self._period
        if self.safety.state != ARMED or self._stopping:
            return
        moved = self.executor.is_moving(now)
        lasts = self._by_execution and self.executor.lasts(now)
        in_time = lasts or not self.safety.is_meant_to_move  # no instruction: none is due
        source = self.executor.continue_previous(now) if in_time else self.executor.missed(now)
        if source == STOP != self._commands.source and moved:
            self._brake(STOP, now)
        elif moved or source != self._commands.source:
            self._commands.report(source, now, in_time)
