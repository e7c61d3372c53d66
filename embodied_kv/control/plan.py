"""The actions that are executed, and when: of the chunk that runs, and what passed before.

Knows actions, moments and which observation they answer. Does not know clocks, limits or motions.
It is never changed, only replaced, so any thread may read the one that it has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from embodied_kv.control.command import LeftoverActions

_TICK = 1e-9  # s; moments closer than this are the same
NOBODY = LeftoverActions(np.empty((0, 0)), 0, 0.0, 0, 0)


@dataclass(frozen=True, eq=False)
class Plan:
    """What is to come of the running chunk, up to its H, and what was executed before.

    actions: float64 [n, joints], due at moments [n], s; the first is the one that was due next at
    the take-over. past: [m, joints] at past_moments [m]: since the observation that the chunk
    answers, and at last where the arm was at the take-over. observed: the moment of that
    observation. source: the chunk's facts, as of a leftover without values.
    """

    actions: NDArray[np.float64]
    moments: NDArray[np.float64]
    past: NDArray[np.float64]
    past_moments: NDArray[np.float64]
    observed: float = -np.inf
    source: LeftoverActions = NOBODY

    @classmethod
    def nothing(cls, joints: int) -> Plan:
        """Nothing was executed, and nothing is to come."""
        none = np.empty((0, joints))
        return cls(none, none[:, 0], none, none[:, 0])

    def __bool__(self) -> bool:
        return len(self.moments) > 0

    def then(
        self,
        source: LeftoverActions,
        actions: NDArray[np.float64],
        moments: NDArray[np.float64],
        observed: float,
        now: float,
        here: NDArray[np.float64],
    ) -> Plan:
        """From now on these actions of `source`. here: [joints], what the arm is told now."""
        past, past_moments = self._all()
        over = past_moments < now - _TICK
        past, past_moments = past[over], past_moments[over]
        if moments[0] > now + _TICK:
            past, past_moments = np.vstack([past, here]), np.append(past_moments, now)
        since = max(0, int(np.searchsorted(past_moments, observed, side='right')) - 1)
        return Plan(actions, moments, past[since:], past_moments[since:], observed, source)

    def ended(self) -> Plan:
        """Nothing is to come, nor known of what passed."""
        return replace(Plan.nothing(self.actions.shape[1]), observed=self.observed)

    def later(self, seconds: float) -> Plan:
        """All that is to come happens so much later."""
        return replace(self, moments=self.moments + seconds)

    def lasts(self, now: float, dt: float) -> bool:
        """Whether an action is still to come, or the last one has its dt."""
        return bool(self) and bool(now < self.moments[-1] + dt - _TICK)

    def remaining(self, now: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Actions still to come [n, joints], and their moments in s from now [n]."""
        first = int(np.searchsorted(self.moments, now - _TICK))
        return self.actions[first:], np.maximum(self.moments[first:] - now, 0.0)

    def leftover(self, now: float) -> LeftoverActions | None:
        """What is still to come, to be begun anew; None if nothing is."""
        values, _ = self.remaining(now)
        if not len(values):
            return None
        return replace(self.source, values=values, age=now - self.observed)

    def rows(
        self, observed: float, dt: float, count: int, now: float, by_velocity: NDArray[np.bool_]
    ) -> NDArray[np.float64] | None:
        """What is executed at observed + i * dt, float64 [count, joints]; None if none is to come.

        NaN beyond the last action, in all joints alike. A position between two actions lies on
        the line between them, a velocity is kept until the next. Before all that is known the
        arm is where it was first.
        """
        times = observed + np.arange(count) * dt
        known = times <= (self.moments[-1] + _TICK if self else -np.inf)
        if not known.any() or self.moments[-1] < now - _TICK:
            return None
        actions, moments = self._all()
        held = np.searchsorted(moments, times + _TICK, side='right').clip(1) - 1
        between = np.stack([np.interp(times, moments, joint) for joint in actions.T], axis=1)
        rows = np.where(by_velocity, actions[held], between)
        return np.where(known[:, None], rows, np.nan)

    def _all(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        moments = np.concatenate([self.past_moments, self.moments])
        return np.concatenate([self.past, self.actions]), moments
