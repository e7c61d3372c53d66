"""The thread that moves the arm: chunks take over as they come, and no motion outlives its reason.

Knows the steady clock, the trajectory executor and the guard. Does not know messages, and never
computes: chunks are handed to it finished. While the arm moves there is one command per control
period: a fresh chunk as soon as it is there, else word that the previous one goes on, up to its
execution horizon. A period without a fresh chunk is missed; with real-time chunking only where the
one that runs has run out, as chunks are made to be late. Every motion ends at rest by itself. So
who has nothing to say is silent, and others may command the same controllers. A stop is sent a few
times, until it is surely there.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from embodied_kv.control.command import HOLD, STOP, Command, Leftover, Measured, Setpoint
from embodied_kv.control.guard import ARMED, TAKEN_OVER, Guard, NotNow
from embodied_kv.control.outgoing import Outgoing
from embodied_kv.control.rtc import RealTimeChunking
from embodied_kv.control.trajectory_executor import TrajectoryExecutor
from embodied_kv.types import ActionChunk, Guide

WATCH = 0.02  # s between two looks at a moving arm, at most; of a simulation's time too
AT_REST = 5.0  # s, of the steady clock
SETTLE = 0.01  # s in which a chunk that was offered takes over, whoever waits for it

Work = Callable[[float], None]
Offer = tuple[ActionChunk, float, Guide | None]  # when it was observed, what it goes on from


class ControlLoop(threading.Thread):
    """Moves the arm as far as the guard lets it.

    period: s. measured: where the arm is, or None while nobody knows. publish: takes each Command,
    on this thread. publish_setpoint: takes set-points, setpoint_rate per second and only while the
    arm moves; None for a robot without such controllers. failed: takes the reason for which a
    chunk is not executed, or a motion ended early. prepare: is called first. max_chunk_age: s from
    an observation, at most, until its chunk takes over. rtc: None where chunks do not go on from
    one another. allowed: s from an observation to the deadline of its chunk.
    """

    def __init__(
        self,
        executor: TrajectoryExecutor,
        guard: Guard,
        period: float,
        *,
        measured: Callable[[], Measured | None],
        publish: Callable[[Command], None],
        failed: Callable[[Exception], None],
        publish_setpoint: Callable[[Setpoint], None] | None = None,
        setpoint_rate: float = 100.0,
        prepare: Callable[[], None] = lambda: None,
        max_chunk_age: float = 1.0,
        rtc: RealTimeChunking | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name='control loop', daemon=True)
        self.executor, self.guard, self._period = executor, guard, period
        self._measured, self._prepare, self._failed = measured, prepare, failed
        self._outgoing = Outgoing(executor, guard, publish, publish_setpoint, setpoint_rate)
        self._max_chunk_age, self._rtc, self._clock = max_chunk_age, rtc, clock
        self.allowed = rtc.delays.allowed if rtc else period  # s from an observation on
        self._wake, self._settled = threading.Condition(), threading.Event()
        self._settled.set()
        self._offered: Offer | None = None
        self._asked: list[Work] = []  # to be done on this thread, before the offer
        self._expected = -math.inf  # deadline of the newest frame that is being worked on
        self._deadline = math.inf  # when the control period ends; not before the first frame
        self._stirred = self._stopping = False  # whether somebody wants something; the last thing
        guard.require(lambda now: executor.lost(now, measured()))
        guard.watch(self._look)

    # ------------------------------------------------------------------ from any thread

    def expect(self, deadline: float) -> None:
        """A chunk is being made for this deadline."""
        with self._stirring():
            self._expected = deadline

    def guide(self, observed: float) -> Guide | None:
        """What a chunk of this moment, begun now, goes on from, in SI; None if nothing is left."""
        if self._rtc is None or self.guard.state != ARMED:
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

    def resume(self, leftover: Leftover, stamp: int) -> None:
        """What was left of an earlier chunk begins now, until a fresh one takes over.

        stamp: ns on the ROS clock, of now.
        """
        self._ask(lambda now: self._resume(leftover, stamp, now))

    def hold(self) -> None:
        """Come to rest, until a fresh chunk takes over."""
        self._ask(lambda now: self._brake(HOLD, now))

    def leftover(self) -> Leftover | None:
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
        """A change that the thread is to see at once."""
        with self._wake:
            yield
            self._stirred = True
            self._wake.notify()

    def abandon(self) -> None:
        """End the thread as `stop` does, but at once: its clock was set back.

        What runs has no meaning on the new one. It ends at rest by itself.
        """
        self._ask(lambda now: self._cease())
        self.stop()

    def stop(self) -> None:
        """Brake at once, and end the thread when the arm stands; not waiting longer than AT_REST.

        A simulation whose clock stands never says that its arm does.
        """
        with self._stirring():
            self._stopping = True
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
            if stopping and at_rest and self._outgoing.due == math.inf:
                return

    def turn(self) -> float | None:
        """Does what is due now; returns s until something is due again, None if nothing is."""
        with self._wake:
            self._stirred = False
            offered, self._offered = self._offered, None
            asked, self._asked = self._asked, []
            if self._deadline == math.inf and self._expected > -math.inf:
                self._deadline = max(self._expected, self._clock())
        for work in (
            self._outgoing.catch_up,  # a loop that was kept from its work makes no arm jump
            self._obey,
            self._watch,
            *asked,
            lambda now: self._take(offered, now),
            self._end_period,
            self._outgoing.send,
        ):
            self._try(work)
        with self._wake:
            if self._offered is None:
                self._settled.set()
        now = self._clock()
        due = min(self._deadline_now(), self._outgoing.due)
        if self.executor.is_moving(now):
            due = min(due, now + WATCH)
        return None if due == math.inf else max(0.0, due - now)

    def _try(self, work: Work) -> None:
        try:
            work(self._clock())
        except Exception as error:  # the loop must not stop: the next turn is another try
            self._failed(error)

    def _deadline_now(self) -> float:
        """End of this period: the frame's that is worked on, if that is a little later."""
        of_frame = self._expected - self.allowed + self._period
        return max(self._deadline, min(of_frame, self._deadline + self._period))

    def _obey(self, now: float) -> None:
        """The guard first: who may not move ceases, or brakes."""
        state = self.guard.state
        if state == TAKEN_OVER:
            self._cease()
        elif (state != ARMED or self._stopping) and self._outgoing.said not in ('', STOP):
            self._brake(STOP, now)

    def _cease(self) -> None:
        self.executor.drop()
        self._outgoing.cease()

    def _watch(self, now: float) -> None:
        """The arm is where it was sent, and nothing is missing; or the motion ends."""
        if not self.executor.is_moving(now) or self.guard.state != ARMED:
            return
        reason = self.executor.strayed(now, self._measured())
        if reason:
            self.guard.stop(reason)
            self._failed(NotNow(f'stopped: {reason}'))
            self._brake(STOP, now)
        elif self.executor.plan and (missing := self.guard.check(now)):
            self._failed(NotNow(f'the arm stands: {missing}'))
            self._brake(HOLD, now)

    def _take(self, offered: Offer | None, now: float) -> None:
        if offered is None:
            return
        chunk, observed, guide = offered
        if reason := self._refusal(observed, now):
            self.executor.counters.refused += 1
            raise NotNow(reason)
        began = frame = chunk.deadline - self.allowed
        if self._rtc is not None:  # an arm that stood since has not lost an action by it
            began += max(0.0, now - max(self.executor.ends, observed))
        taken = self.executor.take_over(chunk, began, now, self._measured(), observed)
        if taken.values is None:  # what runs goes on
            raise NotNow(taken.reason)
        if self._rtc is not None:
            self._rtc.delays.observe(now - observed)
        if guide is not None and taken.first > guide.delay:
            self.executor.counters.late += 1
        self._deadline = max(min(self._deadline, now + self._period), frame + 2 * self._period)
        self._outgoing.fresh(chunk, taken, now)

    def _refusal(self, observed: float, now: float) -> str:
        """Why no chunk of such an observation is executed; '' if one is."""
        if self._stopping or self.guard.state != ARMED:
            return f'the arm is {self.guard.state}'
        if missing := self.guard.check(now):
            return missing
        if observed < self.guard.since:
            return 'it answers an observation from before the arm was armed or given back'
        if now - observed > self._max_chunk_age:
            return (
                f'it answers an observation {now - observed:.2f} s old; max_chunk_age is '
                f'{self._max_chunk_age:g} s'
            )
        return ''

    def _resume(self, leftover: Leftover, stamp: int, now: float) -> None:
        reason, observed = self._refusal(now, now), now - leftover.age
        if not reason:
            reason = self.executor.resume(leftover, observed, now, self._measured())
        if reason:
            raise NotNow(f'what was left of a chunk is not resumed: {reason}')
        self._outgoing.resumed(leftover, self.executor.plan.actions, stamp, now)

    def _brake(self, source: str, now: float) -> None:
        """The arm comes to rest along its way, if it does not stand."""
        moves = self.executor.is_moving(now)
        self.executor.brake(now, source)
        if moves:
            self._outgoing.brakes(now)
        else:
            self._outgoing.goes_on(source, now)

    def _end_period(self, now: float) -> None:
        """Word of what goes on without a fresh chunk; none where the arm stands as before."""
        if now < self._deadline_now():
            return
        self._deadline = max(self._deadline_now(), now - self._period) + self._period
        if self.guard.state != ARMED or self._stopping:
            return
        moved = self.executor.is_moving(now)
        lasts = self._rtc is not None and self.executor.lasts(now)
        in_time = lasts or not self.guard.is_meant_to_move  # who is told nothing misses nothing
        source = self.executor.goes_on(now) if in_time else self.executor.missed(now)
        if source == STOP != self._outgoing.said and moved:
            self._brake(STOP, now)
        elif moved or source != self._outgoing.said:
            self._outgoing.goes_on(source, now, in_time)
