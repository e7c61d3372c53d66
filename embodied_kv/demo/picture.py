"""Pictures for people: a moment's scene drawn large, the planned path in it, and a few words.

Knows the tabletop, its cameras, and pixels. Does not know ROS, or what a page or film shows.
"""

from __future__ import annotations

import cv2
import numpy as np

from embodied_kv.demo.director import Told
from embodied_kv.demo.nodes.truth import TrueMoment
from embodied_kv.demo.sim.kinematics import forward
from embodied_kv.demo.sim.tabletop import SceneConfig, Tabletop

INK, GREY = '#1d2430', '#6b7480'
DONE, FAILED, REPLACED = '#1b8a3a', '#c62828', '#b26a00'
NEXT, LAST = np.array((255, 255, 255)), np.array((255, 45, 32))  # RGB of a path's ends
FINE = 4  # bits of a pixel's fraction that cv2 draws with


class Scenery:
    """Draws moments at `size` pixels, round things round. A context manager; one thread's.

    ranges: that the robot's scenes are drawn from. Raises as Tabletop does.
    """

    def __init__(self, ranges: SceneConfig, size: int) -> None:
        large = SceneConfig(**vars(ranges) | {'image_size': size})
        self._table = Tabletop(large, smooth=True)

    def __enter__(self) -> Scenery:
        return self

    def __exit__(self, *_: object) -> None:
        self._table.close()

    def draw(self, moment: TrueMoment, path: np.ndarray) -> dict[str, np.ndarray]:
        """What each camera would have seen: uint8 [size, size, 3] RGB by its name.

        path: joints [n, 7], drawn into the front camera's as the way of the gripper point.
        """
        moment.show_on(self._table)
        images = self._table.render()
        draw_path(images['front'], self._table.project(forward(path), 'front'))
        return images


def draw_path(image: np.ndarray, points: np.ndarray) -> None:
    """Into an RGB image: a ring where the path begins, a dot for each action, white to red.

    points: pixels [n, 2] as (column, row); those behind the camera (NaN) are left out.
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
        radius = round(radius * scale * 2**FINE)
        cv2.circle(image, fine[i], radius, colour, cv2.FILLED, cv2.LINE_AA, FINE)

    for wide, colour in ((9, [(0, 0, 0)] * len(points)), (5, colours)):
        for i in range(1, len(points)):
            thick = max(1, round(wide * scale))
            cv2.line(image, fine[i - 1], fine[i], colour[i], thick, cv2.LINE_AA, FINE)
    for i in range(1, len(points)):
        dot(i, 5.5, (0, 0, 0))
        dot(i, 4.0, colours[i])
    dot(0, 10.0, (0, 0, 0))
    dot(0, 8.0, colours[0])


def verdict(told: Told) -> tuple[str, str]:
    """What became of a task, in a word, and its colour; ('', INK) where it is not over."""
    if told.done:
        return '✓ done', DONE
    if told.replaced:
        return '↷ replaced', REPLACED
    return ('✗ not done', FAILED) if told.failed else ('', INK)


def printable(text: str) -> str:
    """The text with a dot for each character that cannot be shown, as bytes that are no UTF-8."""
    return ''.join(c if c.isprintable() and c != '\ufffd' else '·' for c in text)
