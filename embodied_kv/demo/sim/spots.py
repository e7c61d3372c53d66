"""Where a thing is put down: one of two spots in a receptacle, or on the table beside something.

Knows circles and the radial frame of a place: outward from the robot's base, and across. Does not
know tasks or who asks. Everything is a function of where things are now, but for the thing that is
put down: so a choice does not change while it is carried. Arrays: B tables, N things at most on
each, NaN where there is none.
"""

from __future__ import annotations

import numpy as np

OFFSET = 0.026  # m from a receptacle's centre to either of its spots
INSIDE = 0.065  # m from a receptacle's centre, at most, to the middle of what lies in it
APART = 0.045  # m, at least, between the middles of two things in one receptacle
GAP = 0.036  # m between the circles of a thing that is put down and what it is put beside
NEXT = 0.045  # m between two circles, below which one thing is next to the other
FINGERS = 0.056  # m across from a thing's middle that its opened fingers need
MARGIN = 0.015  # m of free table around a thing's circle, inward and outward
DISTANCE, ACROSS = (0.20, 0.58), 0.24  # m from the base, and |y|: on the table and in view


def spots(place: np.ndarray) -> np.ndarray:
    """The two spots [..., 2, 2] of receptacles at [..., 2] m: the far one, then the near one."""
    out = place / np.maximum(np.linalg.norm(place, axis=-1, keepdims=True), 1e-9)
    return place[..., None, :] + np.array([[OFFSET], [-OFFSET]]) * out[..., None, :]


def spot_in(
    at: np.ndarray, movable: np.ndarray, target: np.ndarray, place: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The spot [B, 2] of a receptacle for the target, and whether it is free, bool [B].

    at: [B, N, 2] m. movable: bool [B, N]. target, place: int [B]. The far spot, unless another
    thing in there lies nearer to it than to the near one.
    """
    rows = np.arange(len(at))
    centre = at[rows, place]
    far, near = (spots(centre)[:, i] for i in (0, 1))
    others = movable & (_distances(at, centre) < INSIDE)
    others[rows, target] = False
    is_far = others & (_distances(at, far) < _distances(at, near))
    spot = np.where(is_far.any(1)[:, None], near, far)
    return spot, ~(others & (_distances(at, spot) < APART)).any(1)


def spot_beside(
    at: np.ndarray, radius: np.ndarray, target: np.ndarray, place: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The spot [B, 2] on the table beside `place` for the target, and whether it is free.

    at: [B, N, 2] m. radius: [B, N] m, of the circles. Of the spots inward, outward, to the left
    and to the right of the place, the first that is free: in reach, in view, and clear of all
    other things. Where none is, the first.
    """
    rows = np.arange(len(at))
    centre, own = at[rows, place], radius[rows, target]
    far = (own + radius[rows, place] + GAP)[:, None, None]
    out = centre / np.maximum(np.linalg.norm(centre, axis=1, keepdims=True), 1e-9)
    left = np.stack([-out[:, 1], out[:, 0]], 1)
    candidates = centre[:, None] + far * np.stack([-out, out, left, -left], 1)  # [B, 4, 2]
    others = np.ones(at.shape[:2], bool)
    others[rows, target] = others[rows, place] = False

    distance = np.linalg.norm(candidates, axis=2)
    low, high = DISTANCE
    free = (distance > low) & (distance < high) & (np.abs(candidates[..., 1]) < ACROSS)
    outward = candidates / np.maximum(distance, 1e-9)[..., None]
    way = at[:, None] - candidates[:, :, None]  # [B, 4, N, 2]
    along = np.abs((way * outward[:, :, None]).sum(-1))
    across = np.abs(way[..., 1] * outward[..., None, 0] - way[..., 0] * outward[..., None, 1])
    blocks = (along < (radius + own[:, None] + MARGIN)[:, None]) & (
        across < (radius + FINGERS)[:, None]
    )
    free &= ~(blocks & others[:, None]).any(2)
    return candidates[rows, free.argmax(1)], free.any(1)


def gaps(at: np.ndarray, radius: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Free table [B] m between the circles of things a and b, int [B]."""
    rows = np.arange(len(at))
    apart = np.linalg.norm(at[rows, a] - at[rows, b], axis=1)
    return apart - radius[rows, a] - radius[rows, b]


def _distances(at: np.ndarray, point: np.ndarray) -> np.ndarray:
    """[B, N] from points [B, 2]."""
    return np.linalg.norm(at - point[:, None], axis=2)
