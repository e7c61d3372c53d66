"""Rendering of a moment for the film: the scene at high resolution with the planned path."""

from __future__ import annotations

import numpy as np

from embodied_kv.demo.director import GivenTask
from embodied_kv.demo.draw_path import draw_path
from embodied_kv.demo.nodes.truth import TrueMoment
from embodied_kv.demo.sim.kinematics import forward
from embodied_kv.demo.sim.tabletop import SceneConfig, Tabletop

INK, GREY = '#1d2430', '#6b7480'
DONE, FAILED, REPLACED = '#1b8a3a', '#c62828', '#b26a00'


class SceneRenderer:
    """Renders moments at `size` pixels. A context manager that belongs to one thread.

    ranges: of the robot's scenes. Raises like Tabletop.
    """

    def __init__(self, ranges: SceneConfig, size: int) -> None:
        large = SceneConfig(**vars(ranges) | {'image_size': size})
        self._table = Tabletop(large, smooth=True)

    def __enter__(self) -> SceneRenderer:
        return self

    def __exit__(self, *_: object) -> None:
        self._table.close()

    def draw(self, moment: TrueMoment, path: np.ndarray) -> dict[str, np.ndarray]:
        """Return uint8 [size, size, 3] RGB by camera.

        path: joints [n, 7]; the path of the gripper point is drawn into the front picture.
        """
        moment.show_on(self._table)
        images = self._table.render()
        draw_path(images['front'], self._table.project(forward(path), 'front'))
        return images


def verdict(told: GivenTask) -> tuple[str, str]:
    """Return the result of a task in a word, and its colour; ('', INK) before its end."""
    if told.done:
        return '✓ done', DONE
    if told.replaced:
        return '↷ replaced', REPLACED
    return ('✗ not done', FAILED) if told.failed else ('', INK)


def printable(text: str) -> str:
    """Return the text with a dot for each unprintable character or invalid byte."""
    return ''.join(c if c.isprintable() and c != '\ufffd' else '·' for c in text)
