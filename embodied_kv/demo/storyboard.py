"""The storyboard of a run: one PNG with a card for each task.

A card shows the last frame of the task: the scene at high resolution with the planned path, the
wrist camera, the input images of the policy, and its texts.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from embodied_kv.demo.director import GivenTask
from embodied_kv.demo.nodes.truth import TrueMoment
from embodied_kv.demo.picture import GREY, INK, SceneRenderer, printable, verdict
from embodied_kv.demo.recording import Recording
from embodied_kv.demo.sim.language import NARRATE, SUBTASK

CARDS = 6  # tasks at most
PICTURE = 960  # pixels of a card's picture, twice those of the page for smooth edges
COLUMNS, CARD, DPI = 3, (5.75, 3.1), 168  # inches
FRONT, WRIST, SMALL = 2.85, 1.03, 0.47  # inches of a card's pictures
TOLD, SAID = (27, 2), (34, 4)  # characters per line, and lines, of instruction and text


@dataclass(frozen=True, eq=False)
class Card:
    """The last frame of a task. seconds: since the first chunk. mark: verdict and its colour.

    views, seen: uint8 [height, width, 3] by camera; rendered, and as the policy received it.
    """

    seconds: float
    views: dict[str, np.ndarray]
    seen: dict[str, np.ndarray]
    instruction: str
    said: str
    note: str
    mark: tuple[str, str]


def make_cards(
    recording: Recording, told: Sequence[GivenTask], renderer: SceneRenderer
) -> list[Card]:
    """Return the cards of the first CARDS tasks that the recording has a frame of."""
    cards = []
    for task in told[:CARDS]:
        end = task.stamp + int(task.seconds * 1e9)
        decision = recording.decision(end)
        if decision is None or decision.stamp < task.stamp:
            continue
        texts = recording.said(end, since=task.stamp).items()
        said = [pair for pair in texts if pair[0] in (SUBTASK, NARRATE)]
        path = decision.path(decision.joints, decision.stamp)
        moment = cast(TrueMoment, recording.moment(decision.stamp))  # known of each decision
        card = Card(
            seconds=(decision.stamp - recording.moments[0].stamp) / 1e9,
            views=renderer.draw(moment, path),
            seen=decision.seen,
            instruction=task.instruction,
            said='{} {}'.format(*said[-1]) if said else '',
            note=decision.note,
            mark=verdict(task),
        )
        cards.append(card)
    return cards


def draw_storyboard(path: Path, cards: Sequence[Card], title: str, note: str = '') -> None:
    """Write the PNG. note: text at the right of the title."""
    rows = -(-len(cards) // COLUMNS)
    figure = Figure((COLUMNS * CARD[0], rows * CARD[1] + 0.6), dpi=DPI, facecolor='white')
    FigureCanvasAgg(figure)
    height = figure.get_figheight()
    figure.text(0.008, 1 - 0.3 / height, title, size=13, weight='bold', color=INK, va='center')
    figure.text(0.992, 1 - 0.3 / height, note, size=11, color=GREY, va='center', ha='right')
    for i, card in enumerate(cards):
        left = i % COLUMNS / COLUMNS
        bottom = (rows - 1 - i // COLUMNS) * CARD[1] / height
        _draw_card(figure, card, (left, bottom, 1 / COLUMNS, CARD[1] / height))
    figure.savefig(path)


def _draw_card(figure: Figure, card: Card, box: tuple[float, ...]) -> None:
    left, bottom, width, height = box

    def axes(x: float, y: float, size: float) -> Axes:
        """Return square axes, in inches from the lower left corner of the card."""
        card = CARD[0] / width, CARD[1] / height
        panel = figure.add_axes(
            (left + x / card[0], bottom + y / card[1], size / card[0], size / card[1])
        )
        panel.set_axis_off()
        return panel

    axes(0.12, 0.1, FRONT).imshow(card.views['front'], interpolation='antialiased')
    axes(3.08, 0.1, WRIST).imshow(card.views['wrist'], interpolation='antialiased')
    for i, image in enumerate(card.seen.values()):
        x = 3.08 + WRIST + 0.08
        axes(x, 0.1 + (SMALL + 0.09) * (1 - i), SMALL).imshow(image, interpolation='nearest')

    words = axes(3.08, 0.1, FRONT)
    words.set(xlim=(0, 1), ylim=(0, 1))
    text: list[tuple[str, dict[str, Any]]] = [
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
        y -= 0.005 + (line.count('\n') + 1) * style['size'] * 1.25 * 1.15 / 72 / FRONT
    mark, colour = card.mark
    words.text(0.3, 1.0, mark, va='top', size=9, weight='bold', color=colour)
    note: dict[str, Any] = dict(size=8, color=GREY, va='top', linespacing=1.4)
    words.text((WRIST + SMALL + 0.16) / FRONT, WRIST / FRONT, card.note, **note)


def _wrapped(text: str, width: int, lines: int) -> str:
    """Return printable text of at most that many characters per line, and lines."""
    return '\n'.join(textwrap.wrap(printable(text), width, max_lines=lines, placeholder=' …'))
