"""Check whether the actions of a chunk are plausible for the arm, before anything is clamped."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from embodied_kv.control.command import Measured
from embodied_kv.control.limits import Limits

CLAMPED = 0.5  # largest share of the values of a chunk far outside the limits
OUTSIDE = 0.05  # share of the range of a joint: a position further outside is far outside
TOO_FAST = 2.0  # times the velocity limit: a larger velocity is far outside


def unwrapped(
    actions: NDArray[np.float64], measured: Measured | None, limits: Limits
) -> NDArray[np.float64]:
    """Bring the targets of continuous joints within pi of the arm, and of one another.

    actions: float64 [n, joints], as is the result.
    """
    continuous = limits.continuous & ~limits.by_velocity
    if measured is None or not continuous.any():
        return actions
    actions, turn = actions.copy(), 2 * math.pi
    chain = np.unwrap(actions[:, continuous], axis=0)
    turns = np.round((measured.position[continuous] - chain[0]) / turn)
    actions[:, continuous] = chain + turn * np.nan_to_num(turns)
    return actions


def implausible(
    actions: NDArray[np.float64],
    measured: Measured | None,
    limits: Limits,
    nearest: NDArray[np.float64],
) -> str:
    """Return why actions [n, joints], before clamping, are implausible; '' if they are not.

    nearest: largest distance (rad or m) of the first action from the arm, float64 [joints].
    """
    by_velocity = limits.by_velocity
    with np.errstate(invalid='ignore'):
        margin = OUTSIDE * np.where(np.isfinite(limits.upper), limits.upper - limits.lower, 0)
    low = np.where(by_velocity, -TOO_FAST * limits.velocity, limits.lower - margin)
    high = np.where(by_velocity, TOO_FAST * limits.velocity, limits.upper + margin)
    share = float(((actions < low) | (actions > high)).mean())
    if share > CLAMPED:
        return (
            f'{share:.0%} of its values are far outside the limits, {CLAMPED:.0%} are '
            "allowed: check the unit of the contract's actions"
        )
    if measured is None:
        return ''
    first = limits.clip(actions[:1])[0]
    far = ~by_velocity & (np.abs(first - measured.position) > nearest)
    if not far.any():
        return ''
    joint = int(far.argmax())
    return (
        f'its first action sends joint {limits.joints[joint]} from '
        f'{measured.position[joint]:.3f} to {first[joint]:.3f}; max_relative_target is '
        f'{nearest[joint]:.3g}'
    )
