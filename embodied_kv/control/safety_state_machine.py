"""The safety state machine of one arm: whether it may move, and the reason why it does not.

    DISARMED --arm--> ARMED --stop--> STOPPED --reset--> DISARMED
                      ARMED <--take over, give back--> TAKEN_OVER

- A stop latches from every state, outlives every lifecycle transition and every clock jump, and
  ends only with a reset. A reset leads to DISARMED, so that the operator arms in a second step.
- A stop also clears the instruction.
- A fault of the arm disarms it. The reason stays visible until the arm is armed again.
- The parameter `armed` does not arm an arm that an operator or a fault has disarmed.
- While an operator has taken over, the control loop brakes, and then commands nothing.

All methods may be called from any thread. They wait for a short lock only.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

DISARMED, ARMED, STOPPED, TAKEN_OVER = STATES = ('disarmed', 'armed', 'stopped', 'taken over')

Need = Callable[[float], str]  # a moment -> what is missing then, as a sentence; '' for nothing


class RefusedError(ValueError):
    """A request that is refused at present. The message states the reason and the remedy."""


class SafetyStateMachine:
    """The state of one arm, for the lifetime of the process.

    Moments are seconds on the clock of the control loop. `since` is the moment at which the arm
    was last armed or given back: observations from before it are not executed.

    Args:
        armed: Whether the arm is armed from the start, as for a simulated robot.
        instruction: The instruction in force. None: the policy needs none. An empty instruction
            lets the arm stand.
    """

    def __init__(self, *, armed: bool = False, instruction: str | None = None) -> None:
        self._lock = threading.Lock()
        self._armed, self._stopped, self._operator = armed, False, False
        self._instruction = instruction
        self._needs: tuple[Need, ...] = ()
        self._needs_to_arm: tuple[Need, ...] = ()
        self._explanations: tuple[Need, ...] = ()
        self._watchers: tuple[Callable[[], None], ...] = ()
        self._was_disarmed = False  # by an operator or by a fault, since it was armed last
        self._fault = ''  # why the arm was disarmed; '' where an operator did it
        self.reason = ''  # why the arm was stopped
        self.stops = 0  # number of calls of `stop`
        self.since = -math.inf

    def begin(self, now: float, *, armed: bool) -> None:
        """Start a period of control, as at an activation or after a clock jump.

        Needs, explanations and watchers of the period before are dropped. Stop, takeover and
        instruction stay. `armed` arms the arm unless it is stopped, or was disarmed by an operator
        or by a fault.
        """
        with self._lock:
            self._needs = self._needs_to_arm = self._explanations = self._watchers = ()
            self._armed = armed and not (self._stopped or self._was_disarmed)
            self.since = now

    def end(self) -> None:
        """End a period of control, as at a deactivation: the arm is disarmed."""
        with self._lock:
            self._armed = False
        self._changed()

    @property
    def state(self) -> str:
        """Return the state, one of STATES: the most restrictive one that applies."""
        with self._lock:
            if self._stopped:
                return STOPPED
            if not self._armed:
                return DISARMED
            return TAKEN_OVER if self._operator else ARMED

    @property
    def is_armed(self) -> bool:
        """Whether the arm is armed, also while an operator has taken over."""
        with self._lock:
            return self._armed

    @property
    def fault(self) -> str:
        """Return the fault for which the suite disarmed the arm; '' for none."""
        with self._lock:
            return self._fault

    @property
    def is_taken_over(self) -> bool:
        """Whether an operator has taken over, in any state."""
        with self._lock:
            return self._operator

    def require(self, need: Need) -> None:
        """Forbid to arm and to move while this need reports something missing."""
        with self._lock:
            self._needs = (*self._needs, need)

    def require_to_arm(self, need: Need) -> None:
        """Forbid to arm while this need reports something missing."""
        with self._lock:
            self._needs_to_arm = (*self._needs_to_arm, need)

    def explain(self, explanation: Need) -> None:
        """Register a function that states why an armed arm stands, or returns ''."""
        with self._lock:
            self._explanations = (*self._explanations, explanation)

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call this function after each change, on the thread that made the change."""
        with self._lock:
            self._watchers = (*self._watchers, watcher)

    def _changed(self) -> None:
        for watcher in self._watchers:
            watcher()

    def set_instruction(self, instruction: str, now: float = -math.inf) -> None:
        """Put an instruction in force; '' lets the arm stand.

        now: the moment of ''. Chunks of earlier observations, for an earlier instruction, are
        refused from then on.
        """
        with self._lock:
            self._instruction = instruction
            if not instruction.strip():
                self.since = max(self.since, now)
        self._changed()

    @property
    def _is_told(self) -> bool:
        return self._instruction is None or bool(self._instruction.strip())

    @property
    def is_meant_to_move(self) -> bool:
        """Whether the arm is armed and has an instruction: if it stands, something is missing."""
        return self.state == ARMED and self._is_told

    def missing(self, now: float) -> str:
        """Return what is missing to move, in any state; '' for nothing."""
        return _sentence(*self._unmet_needs(now), '' if self._is_told else 'no instruction')

    def idle_reason(self, now: float) -> str:
        """Return why nothing is commanded and what to do; '' while something is commanded."""
        with self._lock:
            explanations = self._explanations
        why = _sentence(self.blocked_by, self.missing(now))
        return why or _sentence(*(explanation(now) for explanation in explanations))

    @property
    def blocked_by(self) -> str:
        """Return why the state forbids motion, and what to do; '' if it permits motion."""
        with self._lock:
            fault = f' ({self._fault})' if self._fault else ''
            held = {
                f'stopped ({self.reason}): reset it, then arm it': self._stopped,
                f'disarmed{fault}: arm it': not self._armed and not self._stopped,
                'an operator has taken over: give it back': self._operator,
            }
        return _sentence(*(why for why, holds in held.items() if holds))

    def _unmet_needs(self, now: float) -> list[str]:
        """Return what the arm lacks, except an instruction, which may arrive later."""
        with self._lock:
            needs = self._needs
        return [need(now) for need in needs]

    def arm(self, now: float) -> None:
        """Arm the arm: from now on chunks are executed.

        Raises:
            RefusedError: The arm is stopped, taken over, moves, or something is missing.
        """
        with self._lock:
            needs = self._needs_to_arm
        missing = _sentence(*self._unmet_needs(now), *(need(now) for need in needs))
        with self._lock:
            if self._stopped:
                raise RefusedError(f'stopped ({self.reason}): reset it first')
            if self._operator:
                raise RefusedError('the operator has taken over: let the arm be given back first')
            if self._armed:
                return
            if missing:
                raise RefusedError(f'not armed: {missing}')
            self._armed, self.since = True, now
            self._was_disarmed, self._fault = False, ''
        self._changed()

    def disarm(self, fault: str = '') -> None:
        """Brake the arm; nothing moves it until it is armed.

        Args:
            fault: The fault for which the suite disarms; '' if an operator disarms. The first
                fault stays.
        """
        with self._lock:
            self._fault = self._fault or (fault if self._armed else '')
            self._armed, self._was_disarmed = False, True
        self._changed()

    def stop(self, reason: str) -> None:
        """Brake the arm at once; nothing moves it until a reset.

        The first reason stays. The instruction is cleared.
        """
        with self._lock:
            if not self._stopped:
                self._stopped, self.reason = True, reason
            self._armed, self._was_disarmed = False, True
            self.stops += 1
            if self._instruction is not None:
                self._instruction = ''
        self._changed()

    def reset(self) -> None:
        """End a stop: the arm is then disarmed, and has no instruction.

        An instruction from before the reset, as that of a capsule that was being restored when the
        stop came, moves nothing after it.
        """
        with self._lock:
            if self._stopped and self._instruction is not None:
                self._instruction = ''
            self._stopped, self.reason = False, ''
        self._changed()

    def take_over(self) -> None:
        """Let an operator move the arm: the control loop brakes and then commands nothing."""
        with self._lock:
            self._operator = True
        self._changed()

    def give_back(self, now: float) -> None:
        """End a takeover: the next motion starts at the measured position."""
        with self._lock:
            self._operator, self.since = False, now
        self._changed()


def _sentence(*parts: str) -> str:
    return '; '.join(filter(None, parts))
