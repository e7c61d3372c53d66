"""The thread that moves the arm: chunks take over as they come; no motion outlives its reason.

The module knows the steady clock, the trajectory executor and the safety state machine. It does
not know messages, and it never computes: chunks are handed to it finished. While the arm moves
there is one command per control period: a fresh chunk as soon as it is there, else the report
that the previous one goes on, up to its execution horizon. A period without a fresh chunk is
missed; with real-time chunking only where the one that runs has run out, as chunks are made to be
late.

Every motion ends at rest. An arm that stands is sent nothing, so that other programs may use its
controllers. A stop, a disarming, a takeover and the end of the thread brake the arm first, and are
sent a few times. Only then does a takeover hand the controllers over.

The arm is disarmed where it does not follow its reference, where a command cannot be reached, and
where it stood longer than `resume_within` although it was meant to move.
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
from embodied_kv.control.trajectory_executor import TrajectoryExecutor
from embodied_kv.types import ActionChunk, Guide

WATCH = 0.02  # s between two looks at a moving arm, at most; of a simulation's time too
AT_REST = 5.0  # s, of the steady clock
SETTLE = 0.01  # s in which a chunk that was offered takes over, whoever waits for it
HANDED_OVER = 0.2  # s after the end of the motion at which a takeover hands the controllers over
NOTICED = 0.5  # s that the arm stands although it is meant to move, until that is reported
HOLDS = 1.0  # s in which an arm that does not follow is held where it is measured
AT_ONCE = 0.004  # s in which the arm is measured once
LATE = 0.3  # s from the moment of a command until it is sent, at most
FIRST_CHUNK = 60.0  # s that the first chunk of an instruction may take: servers compile

Work = Callable[[float], None]
Offer = tuple[ActionChunk, float, Guide | None]  # when it was observed, what it goes on from


class ControlLoop(threading.Thread):
    """Moves the arm as far as the safety state machine lets it.

    Args:
        executor: The motion.
        safety: The safety state machine.
        period: Control period (s).
        measured: Returns the measured arm, or None while it is unknown.
        unknown: Returns why the arm is not known as a whole, '' if it is.
        publish: Takes each Command, on this thread.
        failed: Takes the reason for which a chunk is not executed, or a motion ended early.
        publish_setpoint: Takes set-points while the arm moves; None for a robot without
            controllers that follow them.
        setpoint_rate: Set-points per second.
        has_trajectories: Whether the robot has controllers of trajectories.
        prepare: Is called first, on this thread.
        max_chunk_age: Longest time (s) from an observation until its chunk takes over.
        resume_within: Time (s) that the arm may stand for want of a fresh chunk before it is
            disarmed.
        rtc: Real-time chunking; None where chunks do not go on from one another.
        by_execution: Whether the next chunk comes at the end of an execution, so that none is
            missed before; with real-time chunking it is so, too.
        speed: Returns the speed scaling of the trajectory controllers, 0 to 1.
        fault: Returns why the arm must not be commanded, as by its controllers; '' if it may.
        sent: Takes the position [joints] where the arm is sent now, at each look at a moving arm.
        explain: Returns why an arm that does not follow may not do so; '' if that is not known.
        noticed: Takes a report of an interruption that begins or ends.
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
        has_trajectories: bool = True,
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
        self._measure, self._prepare, self._failed = measured, prepare, failed
        self._seen: tuple[float, Measured | None] = -math.inf, None
        self._publish, self._speed, self._fault = publish, speed, fault
        self._noticed, self._sent, self._explain = noticed, sent, explain
        self._commands = CommandPublisher(
            executor,
            self._measured,
            self._checked,
            publish_setpoint,
            setpoint_rate,
            has_trajectories,
        )
        self._max_chunk_age, self._rtc, self._clock = max_chunk_age, rtc, clock
        self._resume_within = resume_within
        self._by_execution = by_execution or rtc is not None
        self.allowed = rtc.delays.allowed if rtc else period  # s from an observation on
        self._wake, self._settled = threading.Condition(), threading.Event()
        self._settled.set()
        self._offered: Offer | None = None
        self._asked: list[Work] = []  # to be done on this thread, before the offer
        self._expected = -math.inf  # deadline of the newest frame that is being worked on
        self._deadline = math.inf  # when the control period ends; not before the first frame
        self._stirred = self._stopping = False  # a change is to be seen; the thread is to end
        self._ends_by = math.inf  # s of the steady clock
        self._holds_until = -math.inf  # the moment until which a faulty arm is held
        self._turns, self._in_turn = 0, False  # that have ended; whether one is under way
        self._stops = safety.stops  # that were obeyed
        self._began = -math.inf  # the moment at which the present work began
        self._meant = math.inf  # the moment from which on the arm is meant to move
        self._acted = self._reported = False  # since then; whether an interruption was reported
        self._refused = ''  # why the newest chunk was refused
        safety.require(lambda now: unknown() or executor.lost(now, self._measured()))
        safety.require(lambda now: fault())
        safety.require_to_arm(lambda now: executor.moves(self._measured()))
        safety.explain(self._waits)
        safety.watch(self._look)

    # ------------------------------------------------------------------ from any thread

    def expect(self, deadline: float) -> None:
        """A chunk is being made for this deadline."""
        with self._stirring():
            self._expected = deadline

    def guide(self, observed: float) -> Guide | None:
        """What a chunk of this moment, begun now, goes on from, in SI; None if nothing is left."""
        if self._rtc is None or self.safety.state != ARMED:
            return None
        self._settled.wait(SETTLE)  # the chunk before may have been offered just now
        now = self._clock()
        leftover = self.executor.rows(observed, self._rtc.delays.chunk_size, now)
        return self._rtc.guide(leftover, now - observed)

    def offer(
        self, chunk: ActionChunk, observed: float | None = None, guide: Guide | None = None
    ) -> None:
        """A chunk is finished, which goes on from this guide.

        observed: the moment of its observation, where its first action is due at another one.
        """
        began = chunk.deadline - self.allowed
        with self._stirring():
            self._offered = chunk, began if observed is None else observed, guide
            self._settled.clear()

    @property
    def is_idle(self) -> bool:
        """Whether nothing of a chunk is left to execute, and none was offered. From any thread."""
        settled = self._settled.is_set()  # first: what was taken over is in the plan by then
        return settled and not self.executor.plan.lasts(self._clock(), self.executor.dt)

    def refuse(self, reason: str) -> None:
        """Note and report that a chunk was refused before it was offered."""
        self._ask(lambda now: self._take_none(reason))

    def resume(self, leftover: LeftoverActions, stamp: int) -> None:
        """What was left of an earlier chunk begins now, until a fresh one takes over.

        stamp: ns on the ROS clock, of now.
        """
        self._ask(lambda now: self._resume(leftover, stamp, now))

    def hold(self) -> None:
        """Come to rest, until a fresh chunk takes over."""
        self._ask(lambda now: self._brake(HOLD, now))

    def leftover(self) -> LeftoverActions | None:
        """What is still to come of the chunk that runs; None if nothing is."""
        return self.executor.plan.leftover(self._clock())

    def _ask(self, work: Work) -> None:
        with self._stirring():
            self._asked.append(work)

    def _look(self) -> None:
        with self._stirring():
            pass

    @contextmanager
    def _stirring(self) -> Iterator[None]:
        """Make a change that the thread sees at once."""
        with self._wake:
            yield
            self._stirred = True
            self._wake.notify_all()

    def abandon(self) -> None:
        """End the thread as `stop` does, but at once: its clock was set back.

        The arm is sent that it brakes.
        """
        self._ask(lambda now: self._abandon(now))
        self.stop()

    def confirm(self, timeout: float) -> float | None:
        """Wait until the thread has obeyed what was decided before this call.

        Args:
            timeout: Longest time (s) to wait.

        Returns:
            The time (s) until the arm is at rest, or None if the thread did not answer in time.
        """
        with self._wake:
            until = self._turns + (2 if self._in_turn else 1)
            self._stirred = True
            self._wake.notify_all()
            if not self._wake.wait_for(lambda: self._turns >= until, timeout):
                return None
        return max(0.0, self.executor.ends - self._clock())

    def stop(self) -> None:
        """Brake at once, and end the thread when the arm stands; not waiting longer than AT_REST.

        A simulation whose clock stands never says that its arm does.
        """
        with self._stirring():
            self._stopping, self._ends_by = True, time.monotonic() + AT_REST
        if self.is_alive():
            self.join(AT_REST)

    # ------------------------------------------------------------------ the thread

    def run(self) -> None:
        self._prepare()
        pause: float | None = None
        while True:
            with self._wake:
                if not self._stirred:
                    self._wake.wait(pause)
                stopping = self._stopping
            pause = self.turn()
            at_rest = not self.executor.is_moving(self._clock())
            if stopping and at_rest and self._commands.due == math.inf:
                return
            if stopping and time.monotonic() > self._ends_by:
                self._commands.cease()
                return

    def turn(self) -> float | None:
        """Do what is due now; return s until something is due again, None if nothing is."""
        with self._wake:
            self._stirred, self._in_turn = False, True
            offered, self._offered = self._offered, None
            asked, self._asked = self._asked, []
            if self._deadline == math.inf and self._expected > -math.inf:
                self._deadline = max(self._expected, self._clock())
        for work in (
            self._commands.catch_up,  # a loop that was kept from its work makes no arm jump
            self._rest_too_long,
            self._obey,
            self._watch,
            *asked,
            lambda now: self._take(offered, now),
            self._end_period,
            self._commands.send,
        ):
            self._try(work)
        with self._wake:
            if self._offered is None:
                self._settled.set()
            self._turns, self._in_turn = self._turns + 1, False
            self._wake.notify_all()
        return self._pause(self._clock())

    def _pause(self, now: float) -> float | None:
        due = min(self._deadline_now(), self._commands.due, self._outage_due())
        holds = now < self._holds_until and self.safety.state != ARMED
        if self.executor.is_moving(now) or self._hands_over or holds:
            due = min(due, now + WATCH)
        return None if due == math.inf else max(0.0, due - now)

    def _try(self, work: Work) -> None:
        self._began = self._clock()
        try:
            work(self._began)
        except Exception as error:  # the loop must not stop: the next turn is another try
            self._failed(error)

    def _deadline_now(self) -> float:
        """End of this period: the frame's that is worked on, if that is a little later."""
        of_frame = self._expected - self.allowed + self._period
        return max(self._deadline, min(of_frame, self._deadline + self._period))

    def _measured(self) -> Measured | None:
        """Return the measured arm, which is asked for several times in a turn. From any thread."""
        now, (moment, seen) = self._clock(), self._seen
        if not moment <= now < moment + AT_ONCE:
            seen = self._measure()
            self._seen = now, seen
        return seen

    # ------------------------------------------------------------------ safety

    def _obey(self, now: float) -> None:
        """Brake where the state machine forbids to move; hand over once the arm is at rest."""
        state, stops = self.safety.state, self.safety.stops
        if stops != self._stops:
            self._stops = stops
            self._brake(STOP, now, foreign=True)
            self._commands.rests(now)
        elif (state != ARMED or self._stopping) and self._commands.said not in ('', STOP):
            self._brake(STOP, now)
        if self._hands_over and now >= self.executor.ends + HANDED_OVER:
            self._commands.hand_over(now)
            self.executor.drop()

    @property
    def _hands_over(self) -> bool:
        """Whether an operator waits for the controllers."""
        taken = self.safety.is_taken_over and self.safety.state != STOPPED
        return taken and self.executor.has_reference

    def _abandon(self, now: float) -> None:
        self.executor.brake(now, STOP)
        self._commands.ends_now(now)
        self.executor.drop()

    def _watch(self, now: float) -> None:
        """End the motion where the arm does not follow, or something is missing."""
        measured, waited = self._measured(), self.executor.waits
        reason = self.executor.look(now, measured, self._speed())
        if not self.executor.is_moving(now):
            holds = now < self._holds_until and self.safety.state != ARMED
            if holds and not self.executor.is_held(measured):
                self.executor.hold(now, measured)  # it stopped sooner than it was braked
                self._commands.brakes(now)
            return
        if reason:
            reason = self._explained(reason)
        if reason := reason or (self._fault() if self.safety.state == ARMED else ''):
            self._disarm(reason)
            self._hold(now, measured)
            return
        positions = self.executor.due(now).positions
        if positions is not None:
            self._sent(positions)
        if self.executor.waits or waited:
            self._commands.resend(now, at_once=self.executor.waits != waited)
        if self.safety.state == ARMED and self.executor.plan:
            if missing := self.safety.missing(now):
                self._failed(RefusedError(f'the arm stands: {missing}'))
                self._brake(HOLD, now)

    def _hold(self, now: float, measured: Measured | None) -> None:
        """Stand where the arm is measured, now and for a while: it does not follow."""
        self._holds_until = now + HOLDS
        self.executor.hold(now, measured)
        self._commands.brakes(now)

    def _explained(self, reason: str) -> str:
        """Return the reason with what explains it; no error there keeps the arm from stopping."""
        try:
            why = self._explain()
        except Exception as error:
            self._failed(error)
            return reason
        return f'{reason}; {why}' if why else reason

    def _disarm(self, fault: str) -> None:
        if self.safety.state == ARMED:
            self.safety.disarm(fault)
            self._failed(RefusedError(f'disarmed: {fault}'))

    def _checked(self, command: Command) -> None:
        """Publish a command, unless it is late or its motion begins where the arm cannot be."""
        now = self._clock()
        if now - self._began > LATE:
            self._commands.resend(now, at_once=True)
            raise RefusedError('a command was not sent because the process was suspended')
        measured = self._measured()
        if len(command.points) and (measured is not None or command.source == FRESH):
            first = command.times[0], command.points[0]
            if reason := self.executor.unreachable(*first, measured):
                self._disarm(reason)
                self._hold(now, measured)
                return
        self._publish(command)

    # ------------------------------------------------------------------ interruptions

    def _rest_too_long(self, now: float) -> None:
        """Disarm an arm that stood too long; report shorter interruptions at both edges."""
        if not self.safety.is_meant_to_move or not now:  # 0: a simulation has not begun
            self._meant, self._acted, self._reported = math.inf, False, False
            self._refused = ''
            return
        self._meant = now if self._meant == math.inf else max(self._meant, self.safety.since)
        stood = self._stood(now)
        if stood > self._most():
            waits = self._waits(now) or self.safety.missing(now) or 'it was suspended'
            self._disarm(f'the arm stood for {stood:.1f} s ({waits}); {self._allowance()}')
        elif self._acted and stood > NOTICED and not self._reported:
            self._reported = True
            self._noticed(f'the arm stands: {self.safety.missing(now) or self._waits(now)}')

    def _stood(self, now: float) -> float:
        """How long (s) the arm has stood although it is meant to move."""
        return now - max(self._meant, self.executor.ends)

    def _most(self) -> float:
        return self._resume_within if self._acted else max(self._resume_within, FIRST_CHUNK)

    def _allowance(self) -> str:
        if self._acted:
            return f'resume_within is {self._resume_within:g} s'
        return f'the first chunk may take {self._most():g} s'

    def _outage_due(self) -> float:
        """The moment at which an arm that stands is reported or disarmed; inf if it need not."""
        if not self.safety.is_meant_to_move or self._meant == math.inf:
            return math.inf
        began = max(self._meant, self.executor.ends)
        if self._acted and not self._reported:
            return began + NOTICED + 1e-3
        return began + self._most() + 1e-3

    def _waits(self, now: float) -> str:
        """Why nothing is commanded although nothing is missing; '' while something is."""
        if not self.safety.is_meant_to_move or self.executor.is_moving(now):
            return ''
        if self.executor.lasts(now):
            return ''
        refused = f'; the newest was refused: {self._refused}' if self._refused else ''
        what = 'no fresh chunk' if self._acted else 'no chunk yet,'
        return f'{what} for {max(0.0, self._stood(now)):.1f} s{refused}'

    # ------------------------------------------------------------------ chunks

    def _take(self, offered: Offer | None, now: float) -> None:
        if offered is None:
            return
        try:
            self._execute(*offered, now)
        except ValueError as error:
            self._refused = str(error)
            raise

    def _take_none(self, reason: str) -> None:
        self._refused = reason
        self.executor.counters.refused += 1
        raise RefusedError(reason)

    def _execute(
        self, chunk: ActionChunk, observed: float, guide: Guide | None, now: float
    ) -> None:
        if reason := self._refusal(observed, now):
            self.executor.counters.refused += 1
            raise RefusedError(reason)
        began = frame = chunk.deadline - self.allowed
        if self._rtc is not None:  # an arm that stood since has not lost an action by it
            began += max(0.0, now - max(self.executor.ends, observed))
        taken = self.executor.take_over(chunk, began, now, self._measured(), observed)
        if taken.values is None:  # what runs goes on
            raise RefusedError(taken.reason)
        if self._rtc is not None:
            self._rtc.delays.observe(now - observed)
        if guide is not None and taken.first > guide.delay:
            self.executor.counters.late += 1
        self._deadline = max(min(self._deadline, now + self._period), frame + 2 * self._period)
        self._acts(now)
        self._commands.fresh(chunk, taken, now)

    def _acts(self, now: float) -> None:
        if self._reported:
            self._noticed('the arm moves again')
        self._acted, self._reported, self._refused = True, False, ''

    def _refusal(self, observed: float, now: float) -> str:
        """Why no chunk of such an observation is executed; '' if one is."""
        if self._stopping or self.safety.state != ARMED:
            return f'the arm is {self.safety.state}'
        if missing := self.safety.missing(now):
            return missing
        if observed < self.safety.since:
            return 'it answers an observation from before the arm was armed or given back'
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
        self._acts(now)
        self._commands.resumed(leftover, self.executor.plan.actions, stamp, now)

    def _brake(self, source: str, now: float, foreign: bool = False) -> None:
        """Let the arm come to rest. foreign: also if another program moves it."""
        moves = self.executor.is_moving(now)
        self.executor.brake(now, source, self._measured(), foreign)
        if moves or self.executor.is_moving(now):
            self._commands.brakes(now)
        else:
            self._commands.goes_on(source, now)

    def _end_period(self, now: float) -> None:
        """Word of what goes on without a fresh chunk; none where the arm stands as before."""
        if now < self._deadline_now():
            return
        self._deadline = max(self._deadline_now(), now - self._period) + self._period
        if self.safety.state != ARMED or self._stopping:
            return
        moved = self.executor.is_moving(now)
        lasts = self._by_execution and self.executor.lasts(now)
        in_time = (
            lasts or not self.safety.is_meant_to_move
        )  # without an instruction none is missed
        source = self.executor.goes_on(now) if in_time else self.executor.missed(now)
        if source == STOP != self._commands.said and moved:
            self._brake(STOP, now)
        elif moved or source != self._commands.said:
            self._commands.goes_on(source, now, in_time)
