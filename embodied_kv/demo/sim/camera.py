"""Pinhole camera geometry: camera axes, and the projection into a square picture.

The axes of a camera are the columns of a matrix [3, 3] in the frame of the table: to the right of
the picture, up, and towards the viewer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def axes_towards(
    eye: Sequence[float], target: Sequence[float], up: Sequence[float] = (0.0, 0.0, 1.0)
) -> np.ndarray:
    """Return the axes [3, 3] of a camera at `eye` with `target` in its centre (m)."""
    back = np.subtract(eye, target).astype(float)
    back /= np.linalg.norm(back)
    right = np.cross(up, back)
    right /= np.linalg.norm(right)
    return np.stack([right, np.cross(back, right), back], -1)


def project(
    points: np.ndarray, eye: Sequence[float], axes: np.ndarray, fovy: float, size: int
) -> np.ndarray:
    """Return the pixels [N, 2], as (column, row), of points [N, 3] (m).

    Whole numbers are pixel centres. A point behind the camera is NaN.

    Args:
        points: The points, in the frame of the table.
        eye: The position of the camera [3] (m).
        axes: The axes of the camera [3, 3].
        fovy: The vertical field of view (degrees).
        size: The width and height of the picture (pixels).
    """
    focal = size / 2 / np.tan(np.deg2rad(fovy) / 2)
    x, y, z = ((np.atleast_2d(points) - eye) @ axes).T
    depth = np.where(z < 0, -z, np.nan)
    return np.stack([x, -y], -1) * (focal / depth)[:, None] + (size - 1) / 2
