"""Pictures for people: a moment's scene drawn large, the planned path in it, and a few words.

Knows the tabletop, its cameras, and pixels. Does not know ROS, or what a page or film shows.
"""

from __future__ import annotations

import numpy as np

from embodied_kv.demo.director import Told
from embodied_kv.demo.draw_path import draw_path
from embodied_kv.demo.nodes.truth import TrueMoment
from embodied_kv.demo.sim.kinematics import forward
from embodied_kv.demo.sim.tabletop import SceneConfig, Tabletop

INK, GREY = '#1d2430', '#6b7480'
DONE, FAILED, REPLACED = '#1b8a3a', '#c62828', '#b26a00'


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
