"""Whether the arm may be moved: who armed it, who stopped it, and what is missing.

Knows states and reasons. Does not know motions, messages or threads that move anything.

    DISARMED --arm--> ARMED --stop--> STOPPED --reset--> DISARMED
                      ARMED <--take over, give back--> TAKEN_OVER

A stop latches, from whatever state. A reset only ends the stop: who has looked at the arm arms it
again, in a second step. Armed without an instruction, the arm stands until it is given one. Taken
over means that an operator moves the arm: nothing is commanded, not even a stop, until it is given
back; what a trajectory controller was sent before goes on to its end unless the operator's own
command replaces it. A stop outlasts a take-over and the other way round. All of it may be called
from any thread and waits for a short lock alone.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

DISARMED, ARMED, STOPPED, TAKEN_OVER = STATES = ('disarmed', 'armed', 'stopped', 'taken over')

Need = Callable[[float], str]  # a moment -> what is missing then, as a sentence; '' for nothing


class NotNow(ValueError):
    """What was asked for is not done now; says why and what to do."""


class Heard:
    """A need: that something comes again and again. what: its name. max_age: s between two."""

    def __init__(self, what: str, max_age: float) -> None:
        self._what, self._max_age = what, max_age
        self._last = -math.inf

    def heard(self, moment: float) -> None:
        """It has come."""
        self._last = moment

    def __call__(self, now: float) -> str:
        age = now - self._last
        if age <= self._max_age:
            return ''
        if age == math.inf:
            return f'no {self._what} yet'
        return f'no {self._what} for {age:.1f} s, {self._max_age:g} s are allowed'


class Guard:
    """The state of one arm. Moments are seconds on the steady clock.

    armed: from the start, as for a simulated robot. instruction: None where nobody gives any, and
    none is needed; an empty one means that the arm is to stand. reason: of the last stop. since:
    when the arm was armed or given back last; what was observed before is of another arm.
    """

    def __init__(self, *, armed: bool = False, instruction: str | None = None) -> None:
        self._lock = threading.Lock()
        self._armed, self._stopped, self._operator = armed, False, False
        self._instruction = instruction
        self._needs: tuple[Need, ...] = ()
        self._watchers: tuple[Callable[[], None], ...] = ()
        self.reason = ''
        self.since = -math.inf

    @property
    def state(self) -> str:
        """One of STATES: what forbids the most is said first."""
        with self._lock:
            if self._stopped:
                return STOPPED
            if not self._armed:
                return DISARMED
            return TAKEN_OVER if self._operator else ARMED

    def require(self, need: Need) -> None:
        """From now on nothing moves while this is missing."""
        with self._lock:
            self._needs = (*self._needs, need)

    def watch(self, watcher: Callable[[], None]) -> None:
        """Have this called after each change, on the thread that made it."""
        with self._lock:
            self._watchers = (*self._watchers, watcher)

    def _changed(self) -> None:
        for watcher in self._watchers:
            watcher()

    def tell(self, instruction: str) -> None:
        """What the arm is to do from now on; '' lets it stand."""
        with self._lock:
            self._instruction = instruction
        self._changed()

    @property
    def _is_told(self) -> bool:
        return self._instruction is None or bool(self._instruction.strip())

    @property
    def is_meant_to_move(self) -> bool:
        """Armed, and told what to do: where it stands nevertheless, something is wrong."""
        return self.state == ARMED and self._is_told

    def check(self, now: float) -> str:
        """What is missing to move, whatever the state; '' for nothing."""
        return _sentence(*self._missing(now), '' if self._is_told else 'no instruction')

    def why_not(self, now: float) -> str:
        """Why the arm does not move, and what to do; '' where it may."""
        with self._lock:
            held = {
                f'stopped ({self.reason}): reset it, then arm it': self._stopped,
                'disarmed: arm it': not self._armed and not self._stopped,
                'an operator has taken over: give it back': self._operator,
            }
        return _sentence(*(why for why, holds in held.items() if holds), self.check(now))

    def _missing(self, now: float) -> list[str]:
        """Of what the arm needs; an instruction may still come."""
        with self._lock:
            needs = self._needs
        return [need(now) for need in needs]

    def arm(self, now: float) -> None:
        """From now on chunks are executed. Raises NotNow."""
        missing = _sentence(*self._missing(now))
        with self._lock:
            if self._stopped:
                raise NotNow(f'stopped ({self.reason}): reset it first')
            if self._operator:
                raise NotNow('the operator has taken over: let the arm be given back first')
            if self._armed:
                return
            if missing:
                raise NotNow(f'not armed: {missing}')
            self._armed, self.since = True, now
        self._changed()

    def disarm(self) -> None:
        """The arm brakes, and nothing moves it until it is armed."""
        with self._lock:
            self._armed = False
        self._changed()

    def stop(self, reason: str) -> None:
        """The arm brakes at once, and nothing moves it until a reset; the first reason stays."""
        with self._lock:
            if not self._stopped:
                self._stopped, self.reason = True, reason
            self._armed = False
        self._changed()

    def reset(self) -> None:
        """Ends a stop; the arm is then disarmed."""
        with self._lock:
            self._stopped, self.reason = False, ''
        self._changed()

    def take_over(self) -> None:
        """An operator moves the arm from now on: commands cease at once, without a stop."""
        with self._lock:
            self._operator = True
        self._changed()

    def give_back(self, now: float) -> None:
        """The operator is done: whatever is executed next starts where the arm is."""
        with self._lock:
            self._operator, self.since = False, now
        self._changed()


def _sentence(*parts: str) -> str:
    return '; '.join(filter(None, parts))
