"""Compare the reference that a joint trajectory controller publishes with that of the suite.

The reference of a controller lags that of the suite. Therefore it is compared with all positions
of the suite's reference within the last LATENCY. It is compared only while the suite moves the
arm, because otherwise another program may use the controller.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

PATIENCE = 0.5  # s for which a reference may differ, and a controller may be silent
LATENCY = 0.3  # s by which a controller may be later than the suite
MOVES = 0.1  # s; without a newer position for this long, the suite does not move the arm
LEAST = 0.25  # share of the tolerance beyond which a reference that stands explains a fault
STANDS = 0.01  # share of the tolerance within which a reference stands
GAP = 0.25  # longest silence (s) that one poll adds, because the process may be suspended


class ControllerReference:
    """Monitor that compares the reference of one controller with that of the suite.

    Moments are seconds on the clock of the control loop.

    Args:
        name: Name of the controller, for messages.
        joints: Names of the joints.
        allowed: Tolerances [joints] of the tracking, rad or m; inf for none.
    """

    def __init__(self, name: str, joints: Sequence[str], allowed: ArrayLike) -> None:
        self._name, self._joints = name, tuple(joints)
        self._allowed = np.asarray(allowed, np.float64)
        self._silence = self._polled = -math.inf  # s; the moment of the newest poll
        self._restart()

    def _restart(self) -> None:
        unknown = np.full(len(self._joints), np.nan)
        self._sent: deque[tuple[float, NDArray[np.float64]]] = deque()  # moment, position
        self._moment, self._reference, self._expected = -math.inf, unknown, unknown  # the newest
        self._met = unknown  # latest moment at which each joint agreed
        self._place, self._moved = unknown, unknown  # where each joint stands, and since when

    def send(self, now: float, position: NDArray[np.float64]) -> None:
        """Note the reference [joints] of a moving arm; called several times within LATENCY."""
        if self._sent and now < self._sent[-1][0]:  # the clock was set back
            self._restart()
        self._sent.append((now, position))
        while self._sent[0][0] < now - LATENCY:
            self._sent.popleft()

    def poll(self, now: float, reference: ArrayLike | None) -> None:
        """Note what the controller has published since the last poll.

        Args:
            now: The moment.
            reference: Its newest reference [joints], NaN for an unknown joint; None if it has
                published nothing.
        """
        passed, self._polled = now - self._polled, now
        if reference is None:
            self._silence += min(max(0.0, passed), GAP)
            return
        self._silence, self._moment = 0.0, now
        self._reference = self._expected = reference = np.asarray(reference, np.float64)
        if self._sent and now <= self._sent[-1][0] + MOVES:
            places = np.array([position for _, position in self._sent])
            self._expected = np.clip(reference, places.min(axis=0), places.max(axis=0))
        differs = (self._distance > self._allowed) & ~np.isnan(self._met)
        self._met = np.where(differs, self._met, now)
        moves = ~(np.abs(reference - self._place) <= STANDS * self._allowed)
        self._place = np.where(moves, reference, self._place)
        self._moved = np.where(moves, now, self._moved)

    def problem(self) -> str:
        """Return why the controller does not execute what it was sent; '' if it does."""
        if self._silence > PATIENCE:
            return (
                f'controller {self._name} has been silent for {self._silence:.1f} s; activate it'
            )
        return self._named(self._moment - self._met > PATIENCE)

    def explanation(self) -> str:
        """Return the cause in the controller for an arm that does not follow; '' if there is none.

        The controller is the cause if its reference has not moved for LATENCY, although the arm
        was sent elsewhere.
        """
        stands = self._moment - self._moved > LATENCY
        return self._named(stands & (self._distance > LEAST * self._allowed))

    @property
    def _distance(self) -> NDArray[np.float64]:
        return np.abs(self._reference - self._expected)

    def _named(self, differs: NDArray[np.bool_]) -> str:
        """Return the sentence that names the first joint that differs; '' if none does."""
        if not differs.any():
            return ''
        joint = int(differs.argmax())
        return (
            f'controller {self._name} did not take the trajectory: its reference of joint '
            f'{self._joints[joint]} is at {self._reference[joint]:.3f}, '
            f'{self._expected[joint]:.3f} was sent'
        )
