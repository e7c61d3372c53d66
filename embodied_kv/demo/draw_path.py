"""The predicted path of the gripper, drawn into a picture."""

from __future__ import annotations

import cv2
import numpy as np

NEXT, LAST = np.array((255, 255, 255)), np.array((255, 45, 32))  # RGB of a path's ends
FINE = 4  # bits of a pixel's fraction that cv2 draws with


def draw_path(image: np.ndarray, points: np.ndarray) -> None:
    """Draw a ring at the start of the path, and a dot for each action, from white to red.

    image: RGB, changed in place. points: pixels [n, 2] as (column, row); NaN is skipped.
    """
    points = points[np.isfinite(points).all(1)]
    if not len(points):
        return
    scale = len(image) / 640
    fine = [tuple(np.round(point * 2**FINE).astype(int).tolist()) for point in points]
    colours = [
        tuple(((1 - share) * NEXT + share * LAST).round().tolist())
        for share in np.linspace(0, 1, len(points))
    ]

    def dot(i: int, radius: float, colour: tuple[float, ...]) -> None:
        size = round(radius * scale * 2**FINE)
        cv2.circle(image, fine[i], size, colour, cv2.FILLED, cv2.LINE_AA, FINE)

    for wide, colour in ((9, [(0, 0, 0)] * len(points)), (5, colours)):
        for i in range(1, len(points)):
            thick = max(1, round(wide * scale))
            cv2.line(image, fine[i - 1], fine[i], colour[i], thick, cv2.LINE_AA, FINE)
    for i in range(1, len(points)):
        dot(i, 5.5, (0, 0, 0))
        dot(i, 4.0, colours[i])
    dot(0, 10.0, (0, 0, 0))
    dot(0, 8.0, colours[0])
