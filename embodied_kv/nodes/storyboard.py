"""A strip of what the robot saw, was told, planned and said: one PNG.

Knows pictures and the tabletop's camera geometry. Does not know ROS.
A card shows one frame: the front camera with the actions of that frame's chunk as the path of the
gripper point, from white (now) to red (the chunk's end), the wrist camera, the words, and what
became of the task.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from embodied_kv.sim.tabletop import Tabletop

INK, GREY, PATH = '#1d2430', '#6b7480', ('#ffffff', '#ff2d20')
MARKS = {True: ('✓ done', '#1b8a3a'), False: ('✗ not done', '#c62828')}
COLUMNS, CARD = 3, (5.75, 3.1)  # inches
TOLD, SAID = (27, 2), (34, 5)  # characters a line, and lines, of the instruction and of the words


@dataclass(frozen=True, eq=False)
class Card:
    """One frame. seconds: since the first chunk. front, wrist: uint8 [height, width, 3].

    scene: its seed. path: float64 [n, joints], the joints of the frame, then the actions of its
    chunk. done: whether its task was done in the end, None if that is not known.
    """

    seconds: float
    scene: int
    front: np.ndarray
    wrist: np.ndarray
    path: np.ndarray
    instruction: str
    said: str
    note: str
    done: bool | None = None


def draw_storyboard(
    path: Path, cards: Sequence[Card], table: Tabletop, title: str, note: str = ''
) -> None:
    """Write the PNG. table: draws the scenes of the cards again, for their front cameras.

    note: stands beside the title.
    """
    rows = -(-len(cards) // COLUMNS)
    figure = Figure((COLUMNS * CARD[0], rows * CARD[1] + 0.6), dpi=110, facecolor='white')
    FigureCanvasAgg(figure)
    height = figure.get_figheight()
    figure.text(0.008, 1 - 0.3 / height, title, size=13, weight='bold', color=INK, va='center')
    figure.text(0.992, 1 - 0.3 / height, note, size=11, color=GREY, va='center', ha='right')
    for i, card in enumerate(cards):
        left = i % COLUMNS / COLUMNS
        bottom = (rows - 1 - i // COLUMNS) * CARD[1] / height
        table.reset(card.scene)
        _draw_card(figure, card, table, (left, bottom, 1 / COLUMNS, CARD[1] / height))
    figure.savefig(path)


def _draw_card(figure: Figure, card: Card, table: Tabletop, box: tuple[float, ...]) -> None:
    left, bottom, width, height = box

    def axes(x: float, y: float, size: float) -> Axes:
        """Square, in inches from the card's lower left corner."""
        card = CARD[0] / width, CARD[1] / height
        panel = figure.add_axes(
            (left + x / card[0], bottom + y / card[1], size / card[0], size / card[1])
        )
        panel.set_axis_off()
        return panel

    front = axes(0.12, 0.1, 2.85)
    front.imshow(card.front, interpolation='lanczos')
    size = len(card.front) - 1
    scale = size / (table.config.image_size - 1)
    _draw_path(front, table.project(table.forward(card.path), 'front') * scale)
    front.set(xlim=(-0.5, size + 0.5), ylim=(size + 0.5, -0.5))
    axes(3.08, 0.1, 1.15).imshow(card.wrist, interpolation='lanczos')

    words = axes(3.08, 0.1, 2.85)
    words.set(xlim=(0, 1), ylim=(0, 1))
    text = [
        (f'{card.seconds:.1f} s', dict(size=9, color=GREY)),
        (_wrapped(card.instruction, *TOLD), dict(size=10.5, weight='bold', color=INK)),
        (
            _wrapped(f'“{card.said.strip() or "…"}”', *SAID),
            dict(size=9, style='italic', color=INK),
        ),
    ]
    y = 1.0
    for line, style in text:
        words.text(0, y, line, va='top', linespacing=1.25, parse_math=False, **style)
        y -= 0.005 + (line.count('\n') + 1) * style['size'] * 1.25 * 1.15 / 72 / 2.85
    mark, colour = MARKS.get(card.done, ('', INK))
    words.text(0.43, 1.0, mark, va='top', size=9, weight='bold', color=colour)
    note = dict(size=8, color=GREY, va='top', linespacing=1.4)
    words.text(0.43, 1.15 / 2.85, card.note, **note)


def _draw_path(axes: Axes, points: np.ndarray) -> None:
    """points: pixels [n, 2]; those behind the camera are left out."""
    points = points[np.isfinite(points).all(1)]
    if len(points) < 2:
        return
    share = np.linspace(0, 1, len(points) - 1)[:, None]
    rgb = [np.array([int(c[i : i + 2], 16) for i in (1, 3, 5)]) / 255 for c in PATH]
    colours = rgb[0] * (1 - share) + rgb[1] * share
    segments = np.stack([points[:-1], points[1:]], 1)
    axes.add_collection(LineCollection(segments, colors='black', linewidths=4.5, capstyle='round'))
    axes.add_collection(LineCollection(segments, colors=colours, linewidths=2.5, capstyle='round'))
    axes.scatter(*points[1:].T, s=14, c=colours, edgecolors='black', linewidths=0.6, zorder=3)
    axes.scatter(*points[0], s=46, c=PATH[0], edgecolors='black', linewidths=1.2, zorder=4)


def printable(text: str) -> str:
    """The text with a dot for each character that cannot be shown, as bytes that are no UTF-8."""
    return ''.join(c if c.isprintable() and c != '\ufffd' else '·' for c in text)


def _wrapped(text: str, width: int, lines: int) -> str:
    """Printable, and at most that many characters a line and lines."""
    return '\n'.join(textwrap.wrap(printable(text), width, max_lines=lines, placeholder=' …'))
