"""The limit of the time for which an arm may stand although it is meant to move.

An arm stands while no chunk arrives, while chunks are refused, or while something is missing.
After a long interruption a motion would be unexpected, so the arm is disarmed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from embodied_kv.control.safety_state_machine import SafetyStateMachine
from embodied_kv.control.trajectory_executor import TrajectoryExecutor

REPORT_AFTER = 0.5  # s from the start of an interruption until it is reported
FIRST_CHUNK = 60.0  # s for the first chunk of an instruction, because servers compile


class StandstillMonitor:
    """Reports interruptions of the motion, and disarms an arm that stood too long.

    Args:
        executor: The motion.
        safety: The safety state machine.
        resume_within: Longest time (s) that the arm may stand without a fresh chunk.
        disarm: Disarms the arm for a reason.
        report: Takes a report when an interruption begins or ends.

    refused: why the newest chunk was refused; '' if it was not.
    """

    def __init__(
        self,
        executor: TrajectoryExecutor,
        safety: SafetyStateMachine,
        resume_within: float,
        disarm: Callable[[str], None],
        report: Callable[[str], None],
    ) -> None:
        self._executor, self._safety, self._resume_within = executor, safety, resume_within
        self._disarm, self._report = disarm, report
        self._meant = math.inf  # moment since which the arm is meant to move
        self._has_moved = self._reported = False  # since then; interruption was reported
        self.refused = ''

    def check(self, now: float) -> None:
        """Disarm an arm that stood too long; report the begin of a shorter interruption."""
        if not self._safety.is_meant_to_move or not now:  # 0: a simulation has not started
            self._meant, self._has_moved, self._reported = math.inf, False, False
            self.refused = ''
            return
        self._meant = now if self._meant == math.inf else max(self._meant, self._safety.since)
        stood = self._standing_time(now)
        if stood > self._longest():
            waits = self.idle_reason(now) or self._safety.missing(now) or 'it was suspended'
            self._disarm(f'the arm stood for {stood:.1f} s ({waits}); {self._allowance()}')
        elif self._has_moved and stood > REPORT_AFTER and not self._reported:
            self._reported = True
            self._report(f'the arm stands: {self._safety.missing(now) or self.idle_reason(now)}')

    def note_motion(self) -> None:
        """Note that a motion begins; report the end of an interruption."""
        if self._reported:
            self._report('the arm moves again')
        self._has_moved, self._reported, self.refused = True, False, ''

    @property
    def due(self) -> float:
        """Return the moment at which an arm that stands is reported or disarmed; inf for never."""
        if not self._safety.is_meant_to_move or self._meant == math.inf:
            return math.inf
        began = max(self._meant, self._executor.ends)
        if self._has_moved and not self._reported:
            return began + REPORT_AFTER + 1e-3
        return began + self._longest() + 1e-3

    def idle_reason(self, now: float) -> str:
        """Return why nothing is commanded although nothing is missing; '' otherwise."""
        if not self._safety.is_meant_to_move or self._executor.is_moving(now):
            return ''
        if self._executor.lasts(now):
            return ''
        refused = f'; the newest was refused: {self.refused}' if self.refused else ''
        what = 'no fresh chunk' if self._has_moved else 'no chunk yet,'
        return f'{what} for {max(0.0, self._standing_time(now)):.1f} s{refused}'

    def _standing_time(self, now: float) -> float:
        """Return how long (s) the arm has stood although it is meant to move."""
        return now - max(self._meant, self._executor.ends)

    def _longest(self) -> float:
        return self._resume_within if self._has_moved else max(self._resume_within, FIRST_CHUNK)

    def _allowance(self) -> str:
        if self._has_moved:
            return f'resume_within is {self._resume_within:g} s'
        return f'the first chunk may take {self._longest():g} s'
