"""Free spots for a thing: two in each receptacle, or on the table beside another thing.

Directions are radial, outward from the robot's base, and across. A spot depends on the present
positions of all other things, so that it does not change while the thing is carried. Arrays: B
tables, at most N things on each, NaN for absent ones.
"""

from __future__ import annotations

import numpy as np

OFFSET = 0.026  # m from the centre of a receptacle to each of its spots
INSIDE = 0.065  # m, largest distance of a contained thing from the centre of its receptacle
APART = 0.045  # m, least distance of the middles of two things in one receptacle
# m between the circles of a thing and the one that it is put beside: inward or outward of it,
# where no finger is between them, and across, where an open finger is
GAPS = 0.028, 0.036
NEXT = 0.045  # m between the circles of two things, below which they are next to each other
FINGERS = 0.056  # m across from the middle of a thing, for the open fingers
MARGIN = 0.015  # m of free table around a thing's circle, inward and outward
DISTANCE, ACROSS = (0.20, 0.58), 0.24  # m from the base, and |y|: in reach and in view


def spots(place: np.ndarray) -> np.ndarray:
    """Return the spots [..., 2, 2] of receptacles at [..., 2] m: far, then near."""
    out = place / np.maximum(np.linalg.norm(place, axis=-1, keepdims=True), 1e-9)
    return place[..., None, :] + np.array([[OFFSET], [-OFFSET]]) * out[..., None, :]


def spot_in(
    at: np.ndarray, movable: np.ndarray, target: np.ndarray, place: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the spot [B, 2] in a receptacle for the target, and whether it is free, bool [B].

    at: [B, N, 2] m. movable: bool [B, N]. target, place: int [B]. The spot is the far one, unless
    another contained thing is nearer to it than to the near one.
    """
    rows = np.arange(len(at))
    centre = at[rows, place]
    far, near = (spots(centre)[:, i] for i in (0, 1))
    others = movable & (_distances(at, centre) < INSIDE)
    others[rows, target] = False
    is_far = others & (_distances(at, far) < _distances(at, near))
    spot = np.where(np.any(is_far, 1)[:, None], near, far)
    return spot, ~np.any(others & (_distances(at, spot) < APART), 1)


def spot_beside(
    at: np.ndarray, radius: np.ndarray, target: np.ndarray, place: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the spot [B, 2] on the table beside `place` for the target, and whether it is free.

    at: [B, N, 2] m. radius: [B, N] m, of the circles. The spot is the first free one of inward,
    outward, left and right: in reach, in view, and clear of all other things; else the first.
    """
    rows = np.arange(len(at))
    centre, own = at[rows, place], radius[rows, target]
    far = (own + radius[rows, place])[:, None, None] + np.repeat(GAPS, 2)[:, None]
    others = np.ones(at.shape[:2], bool)
    others[rows, target] = others[rows, place] = False
    out = centre / np.maximum(np.linalg.norm(centre, axis=1, keepdims=True), 1e-9)
    left = np.stack([-out[:, 1], out[:, 0]], 1)
    candidates = centre[:, None] + far * np.stack([-out, out, left, -left], 1)  # [B, 4, 2]
    free = _are_free(candidates, at, radius, own, others)
    return candidates[rows, free.argmax(1)], np.any(free, 1)


def is_free(
    at: np.ndarray, radius: np.ndarray, movable: np.ndarray, target: np.ndarray, spot: np.ndarray
) -> np.ndarray:
    """Return whether spots [B, 2], on the table or in a receptacle, are free for the target: [B].

    A free spot on the table is in reach, in view, and clear of all other things.
    """
    rows = np.arange(len(at))
    others = np.ones(at.shape[:2], bool)
    others[rows, target] = False
    apart = _distances(at, spot)
    inside = (~movable & (apart < INSIDE)).any(1)
    beside_another = (others & movable & (apart < APART)).any(1)
    on_the_table = _are_free(spot[:, None], at, radius, radius[rows, target], others)[:, 0]
    return np.where(inside, ~beside_another, on_the_table)


def _are_free(
    candidates: np.ndarray, at: np.ndarray, radius: np.ndarray, own: np.ndarray, others: np.ndarray
) -> np.ndarray:
    """Return whether spots [B, K, 2] are free for things of radius `own` [B] m: bool [B, K].

    others: bool [B, N], the things that may be in the way.
    """
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
    return free & ~(blocks & others[:, None]).any(2)


def gaps(at: np.ndarray, radius: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the free distance [B] m between the circles of things a and b, int [B]."""
    rows = np.arange(len(at))
    apart = np.linalg.norm(at[rows, a] - at[rows, b], axis=1)
    return apart - radius[rows, a] - radius[rows, b]


def _distances(at: np.ndarray, point: np.ndarray) -> np.ndarray:
    """Return the distances [B, N] from points [B, 2]."""
    return np.linalg.norm(at - point[:, None], axis=2)
