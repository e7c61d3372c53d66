"""The motion that runs beside the position that is measured: where to go on from, and when not to.

Knows motions on the steady clock, and measurements that are a little old. Does not know actions.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from embodied_kv.control.command import Measured
from embodied_kv.control.limits import Limits
from embodied_kv.control.motion import Motion, stay

STANDS = 0.05  # rad/s or m/s: an arm that is no faster stands


class Course:
    """Where the arm is sent, over time. max_tracking_error, max_state_age: as of the executor.

    A measurement is compared with where the arm was sent at its own moment, so the motion before
    is kept too.
    """

    def __init__(
        self, limits: Limits, max_tracking_error: ArrayLike, max_state_age: float
    ) -> None:
        allowed = np.asarray(max_tracking_error, np.float64)
        if allowed.shape not in ((), (len(limits),)) or not (allowed > 0).all():
            raise ValueError(
                f'max_tracking_error is one number above 0, or one for each of the {len(limits)} '
                f'joints: got {max_tracking_error}'
            )
        if not 0 < max_state_age < math.inf:
            raise ValueError(f'max_state_age {max_state_age} s is not a finite number above 0')
        # Integrating a velocity tells nothing of where the arm is.
        self._allowed = np.where(limits.by_velocity, math.inf, allowed)
        self._limits, self._max_state_age = limits, max_state_age
        self.clear()

    def clear(self) -> None:
        """The arm was never sent anywhere."""
        self._motions: list[tuple[float, Motion]] = []  # since when; the one before, the running

    def set(self, motion: Motion, now: float) -> None:
        """From now on it is sent this way; a motion that is over is no part of it."""
        runs = self._motions[-1:] if now < self.ends else []
        self._motions = [*runs, (now, motion)]

    def delay(self, seconds: float) -> None:
        """All of it happens so much later."""
        self._motions = [(since + seconds, motion) for since, motion in self._motions]

    def halt(self, moment: float) -> None:
        """The arm stands where it was sent at this moment."""
        self._motions = [(moment, stay(self.at(moment)[0]))]

    def __bool__(self) -> bool:
        return bool(self._motions)

    @property
    def ends(self) -> float:
        """The moment from which on the arm stands; -inf if it was never sent anywhere."""
        if not self._motions:
            return -math.inf
        since, motion = self._motions[-1]
        return since + motion.duration

    def at(self, moment: float) -> tuple[np.ndarray, np.ndarray]:
        """Position and velocity [joints] that the arm is, or was, sent to at a moment."""
        since, motion = next(
            (run for run in reversed(self._motions) if run[0] <= moment), self._motions[0]
        )
        return motion.at(moment - since)

    def sample(self, moments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of the running motion: positions and velocities [n, joints] at moments [n]."""
        since, motion = self._motions[-1]
        return motion.sample(moments - since)

    def after(self, now: float, lead: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Times, positions and velocities to come: see `Motion.after`; none before any motion."""
        if not self._motions:
            return np.empty(0), self.rest(), self.rest()
        since, motion = self._motions[-1]
        return motion.after(now - since, lead)

    def rest(self) -> np.ndarray:
        """Where it comes to rest: float64 [1, joints], or [0, joints] before any motion."""
        if not self._motions:
            return np.empty((0, len(self._limits)))
        return self._motions[-1][1].positions[-1:]

    def base(self, now: float, measured: Measured) -> tuple[np.ndarray, np.ndarray]:
        """Position and velocity [joints] from which a new motion sets out.

        Those of the running motion; of an arm that was seen since that ended, or has left it, the
        measured position at rest. An output that nobody measures counts from 0, or on.
        """
        seen = np.where(np.isfinite(measured.position), measured.position, 0.0)
        if min(now, measured.moment) >= self.ends or self.strayed(measured):
            return seen, np.zeros(len(seen))
        position, velocity = self.at(now)
        integrated = self._limits.by_velocity & np.isfinite(measured.position)
        return np.where(integrated, seen, position), velocity

    def lost(self, now: float, measured: Measured | None) -> str:
        """Why it is not known where the arm is at this moment; '' if it is."""
        if measured is None:
            return 'no joint state, or none of late'
        age = now - measured.moment
        if abs(age) > self._max_state_age:
            return f'no joint state for {age:.2f} s, {self._max_state_age:g} s are allowed'
        if np.shape(measured.position) != (len(self._limits),):
            return f'a joint state has {np.size(measured.position)} of {len(self._limits)} joints'
        unknown = ~np.isfinite(measured.position) & ~self._limits.unbounded
        if unknown.any():
            return f'joint {self._limits.joints[int(unknown.argmax())]} is not measured'
        return '' if self._motions else self._moves(measured)

    def _moves(self, measured: Measured) -> str:
        """Why an arm that somebody else sent, or nobody, cannot be set out with yet; else ''."""
        known = np.isfinite(measured.position)
        moves = known & ~(np.abs(measured.velocity) <= STANDS)
        if not moves.any():
            return ''
        joint = int(moves.argmax())
        name, speed = self._limits.joints[joint], measured.velocity[joint]
        if np.isnan(speed):
            return f'it is not known yet whether joint {name} stands'
        return f'joint {name} still moves, at {speed:.2f} per second: let it come to rest'

    def strayed(self, measured: Measured) -> str:
        """Which joint is further than allowed from where it was sent; '' if none is."""
        if not self._motions:
            return ''
        sent, _ = self.at(measured.moment)
        error = np.abs(measured.position - sent)
        far = error > self._allowed
        if not far.any():
            return ''
        joint = int(far.argmax())
        return (
            f'joint {self._limits.joints[joint]} is at {measured.position[joint]:.3f}, '
            f'{error[joint]:.3f} from where it was sent; max_tracking_error is '
            f'{self._allowed[joint]:g}'
        )
