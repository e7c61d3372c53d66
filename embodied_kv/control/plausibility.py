"""Check whether measured joint positions are plausible, and unwrap continuous joints.

A `JointCheck` checks the samples of one joint, from all publishers, by these rules:

1. A sample must be finite, and within the position limits plus a margin of max(0.1, 5 % of the
   range). The margin keeps an arm usable that rests a little outside of its limits.
2. A sample must be reachable from the last accepted one:

       |change| <= velocity limit * (1.5 * |time between the stamps| + 50 ms) + noise

   The factor covers overshoot, the 50 ms cover stamps that are quantised or wrong by up to 25 ms
   each, and noise = min(0.02, 2 % of the range) covers the encoder. So a joint that respects its
   velocity limit is never refused, whatever the rate of its driver and however many messages are
   lost.
3. A refused sample changes nothing but a counter. The joint is unknown, with a reason, after a
   second refused sample in a row, and for 3 s after accepted and refused samples alternated three
   times within 3 s, as those of two contradicting publishers do.
4. Samples that agree with one another by rule 2 for 0.25 s, without an accepted one in between,
   replace the last accepted sample. A joint becomes known in the same way at first. So one false
   first sample neither counts nor locks out the correct ones.
5. After a gap of more than 0.25 s a sample far from the last one waits for the next to confirm it.

A joint without a velocity limit is accepted by rule 1 alone.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embodied_kv.control.limits import Limits
from embodied_kv.robots.units import unwrapped

AGREEMENT = 250_000_000  # ns of consistent samples that make a joint known
FACTOR = 1.5  # largest plausible speed, relative to the velocity limit
SLACK = 0.05  # s by which the time between two stamps may be wrong
MARGIN, MARGIN_SHARE = 0.1, 0.05  # rad or m, and share of the range, outside of the limits
NOISE, NOISE_SHARE = 0.02, 0.02  # rad or m, and share of the range, at most
ALTERNATIONS, MEMORY = 3, 3_000_000_000  # changes between accepted and refused, within MEMORY ns
SET_BACK = 500_000_000  # ns; a stamp that is older than the last one by more is not a late sample


@dataclass(frozen=True)
class Bounds:
    """Limits of one joint: positions (rad or m) and speed; infinite where none is known.

    Args:
        lower: Smallest position.
        upper: Largest position.
        velocity: Largest speed.
        continuous: Whether positions that differ by a full turn are the same place.
        unit: 'rad' or 'm', for messages.
    """

    lower: float = -math.inf
    upper: float = math.inf
    velocity: float = math.inf
    continuous: bool = False
    unit: str = 'rad'


def bounds_of(limits: Limits, linear: NDArray[np.bool_]) -> dict[str, Bounds]:
    """Return the bounds of each output by name. linear: bool [joints], which are in m."""
    columns = zip(
        limits.joints,
        limits.lower.tolist(),
        limits.upper.tolist(),
        limits.velocity.tolist(),
        limits.continuous.tolist(),
        linear.tolist(),
        strict=True,
    )
    return {
        joint: Bounds(lower, upper, velocity, continuous, 'm' if is_m else 'rad')
        for joint, lower, upper, velocity, continuous, is_m in columns
    }


class JointCheck:
    """Plausibility check of the samples of one joint, in the order of arrival.

    Args:
        bounds: Limits of the joint.

    Attributes:
        refused: Number of refused samples.
        replaced: Whether the last accepted sample does not continue the ones before.
    """

    __slots__ = (  # A driver may send 1000 messages a second.
        '_alternations', '_base', '_checks_speed', '_confirmed', '_continuous', '_far', '_high',
        '_low', '_near', '_rate', '_run', '_slack', '_stamp', '_streak', '_why', 'bounds',
        'refused', 'replaced',
    )  # fmt: skip

    def __init__(self, bounds: Bounds) -> None:
        self.bounds, span = bounds, bounds.upper - bounds.lower
        margin = max(MARGIN, MARGIN_SHARE * span) if span < math.inf else MARGIN
        self._low = max(bounds.lower - margin, -sys.float_info.max)  # refuses infinity too
        self._high = min(bounds.upper + margin, sys.float_info.max)
        self._continuous, self._checks_speed = bounds.continuous, bounds.velocity < math.inf
        self._rate = bounds.velocity * FACTOR * 1e-9 if self._checks_speed else 0.0  # per ns
        self._slack = bounds.velocity * SLACK + min(NOISE, NOISE_SHARE * span)
        self._far = self._rate * AGREEMENT + self._slack
        self.refused = 0
        self._base: float | None = None  # the last accepted position
        self.restart()

    def restart(self, turns: bool = False) -> None:
        """Forget all samples. turns: whether a continuous joint keeps its number of turns."""
        self._near = self._base if turns else None  # a position from before, near the next one
        self._base = None
        self._stamp = 0  # its stamp
        self._run: tuple[int, int, float] | None = None  # first and last stamp, last position
        self._streak = 0  # refused samples since the last accepted one
        self._confirmed = self.replaced = True
        self._alternations: deque[int] = deque(maxlen=ALTERNATIONS)
        self._why: tuple[str, float, float, int] | None = None  # of the last refusal

    def drop_after(self, stamp: int) -> None:
        """Forget all samples if the last one is later than this: time was set back."""
        if self._base is not None and self._stamp > stamp:
            self.restart()

    def add(self, stamp: int, position: float) -> float | None:
        """Return the position of a sample, unwrapped; None if it is refused or not yet used."""
        base = self._base
        near = self._near if base is None else base
        if self._continuous and near is not None and math.isfinite(position):
            position = unwrapped(position, near)
        if not self._low <= position <= self._high:
            self._refuse('limits' if math.isfinite(position) else 'finite', position)
            return None
        if base is not None:
            passed, way = stamp - self._stamp, abs(position - base)
            if way <= self._rate * abs(passed) + self._slack:
                if passed >= 0:
                    if self._streak:
                        self._alternations.append(stamp)
                        self._streak, self._run = 0, None
                    self._confirmed = passed <= AGREEMENT or way <= self._far
                    self._base, self._stamp = position, stamp
                    return position
                if passed >= -SET_BACK:
                    return None  # It agrees, but arrives late.
        return self._agree(stamp, position)

    def _agree(self, stamp: int, position: float) -> float | None:
        """Return the position if the samples up to this one agree for long enough, else None."""
        run, base, first, agrees = self._run, self._base, stamp, True
        if run is not None:
            if self._continuous:
                position = unwrapped(position, run[2])
            passed = stamp - run[1]
            agrees = abs(position - run[2]) <= self._rate * abs(passed) + self._slack
            if agrees and -SET_BACK <= passed < 0:
                return None  # It agrees, but arrives late.
            first = run[0] if agrees and passed >= 0 else stamp
        if not self._checks_speed or stamp - first >= AGREEMENT:
            near = self._near if base is None else base
            if near is not None and self._continuous:
                position = unwrapped(position, near)
            if stamp < self._stamp:
                self._alternations.clear()
            self._base, self._stamp, self._run, self._streak = position, stamp, None, 0
            self._confirmed = self.replaced = True
            return position
        self._run = first, stamp, position
        if base is not None:
            passed = stamp - self._stamp
            self._refuse('back' if passed < -SET_BACK else 'jump', position, base, passed)
        elif run is not None and not agrees:
            self._refuse('jump', position, run[2], stamp - run[1])
        return None

    def _refuse(self, kind: str, position: float, before: float = 0.0, passed: int = 0) -> None:
        self.refused += 1
        self._streak += 1
        self._why = kind, position, before, passed
        if kind in ('finite', 'limits'):
            self._run = None

    @property
    def is_known(self) -> bool:
        """Whether the last accepted position is valid as the position at its stamp."""
        return (
            self._base is not None
            and self._streak < 2
            and self._confirmed
            and not self._is_alternating
        )

    @property
    def _is_alternating(self) -> bool:
        known = self._alternations
        return len(known) == ALTERNATIONS and known[0] > self._stamp - MEMORY

    @property
    def is_contradicted(self) -> bool:
        """Whether the last refusal was for a jump, which contradicting publishers cause."""
        return self._why is not None and self._why[0] == 'jump'

    def refusal(self) -> str:
        """Return why the last refused sample was refused; '' if none was."""
        if self._why is None:
            return ''
        kind, position, before, passed = self._why
        bounds = self.bounds
        if kind == 'finite':
            return f'must be finite (got {position:g}); check its driver'
        if kind == 'limits':
            within = f'[{bounds.lower:.3g}, {bounds.upper:.3g}] {bounds.unit}'
            return f'must be within {within} (got {position:.4g}); {self._unit(position)}'
        if kind == 'back':
            return (
                f'must have stamps that do not go back (got {-passed / 1e9:.3f} s before the last '
                'one); check the clock of its driver'
            )
        return (
            f'must not move faster than {bounds.velocity:.3g} {bounds.unit}/s (got {before:.3f} '
            f'and {position:.3f} {abs(passed) / 1e6:.0f} ms apart)'
        )

    def problem(self) -> str:
        """Return why the joint is unknown; '' if it is known."""
        if self.is_known:
            return ''
        if self._confirmed and (refusal := self.refusal()):
            return refusal
        return f'is not known until its positions agree for {AGREEMENT / 1e9:g} s'

    def _unit(self, position: float) -> str:
        """Return what to check, given a position outside of the limits."""
        bounds = self.bounds
        if bounds.unit == 'rad' and self._low <= math.radians(position) <= self._high:
            return 'the driver seems to publish degrees: check its unit and sign'
        if bounds.unit == 'm' and 1 <= position <= 1000 * bounds.upper:
            return 'the driver seems to publish millimetres: check its unit'
        return 'check the unit, sign and zero of its driver, or move the joint within its limits'
