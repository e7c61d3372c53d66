"""The film of a run in real time: instructions, camera pictures, plans, texts and motions.

Each frame shows its moment at high resolution, and the small input images of the policy. The text
is only rendered where it changes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import cast

import av
import cv2
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from embodied_kv.demo.after_kill import Recall
from embodied_kv.demo.director import GivenTask
from embodied_kv.demo.last_mission import LastMission
from embodied_kv.demo.nodes.truth import TrueMoment
from embodied_kv.demo.picture import DONE, FAILED, GREY, INK, SceneRenderer, printable, verdict
from embodied_kv.demo.recording import Recording
from embodied_kv.demo.sim.language import NARRATE, SUBTASK

RATE = 15  # frames per second
# Browsers can play H.264 with 4:2:0.
CODEC, QUALITY = 'libx264', {'preset': 'veryfast', 'crf': '20'}
PERIOD = 1_000_000_000 // RATE  # ns
LONGEST = 30.0  # s of a run; rendering takes about two thirds of this time
ENDING = 4.0  # s of the summary at the end
WIDTH, HEIGHT, DPI = 1280, 720, 100
LARGE, WRIST, SMALL = 624, 480, 128  # pixels of the pictures
FRONT_AT, WRIST_AT, SMALL_AT = (8, 64), (640, 64), (1136, 88)  # (column, row) of their corners
LABEL, SAID = 736, 748  # right edge of labels, left edge of texts
ANSWERED = 3.5  # s for which an answer is shown
HASTE = 2  # speed factor of a mission
STANDING = 2.0  # s of the last frame of a mission
LONG, WRAPPED = 64, 78  # letters of a title that is set smaller, and of its lines
ANSWER = 62  # letters of a line of an answer, which has two
PAST = 3  # previous tasks that are listed


class FilmError(Exception):
    """Error: the film cannot be written. The message is for the user."""


@dataclass(frozen=True)
class Page:
    """The texts of a frame. title: the task or mission. pace: speed factor.

    past: mark, colour and text of previous tasks.
    """

    title: str
    mark: tuple[str, str]
    seconds: int
    subtask: str
    narration: str
    answered: str
    past: tuple[tuple[str, str, str], ...]
    pace: int = 1


def draw_film(
    path: Path,
    recording: Recording,
    told: Sequence[GivenTask],
    renderer: SceneRenderer,
    summary: Mapping[str, str],
    mission: LastMission | None = None,
    recall: Recall | None = None,
) -> None:
    """Write an mp4 file with the run, the mission, the recall and the summary.

    renderer: of LARGE pixels.

    Raises FilmError where PyAV cannot encode H.264.
    """
    try:
        av.Codec(CODEC, 'w')
    except ValueError as error:
        raise FilmError(
            f'PyAV has no encoder {CODEC} (H.264); install the package av of PyPI'
        ) from error
    with av.open(str(path), 'w', format='mp4', options={'movflags': 'faststart'}) as container:
        stream = container.add_stream(CODEC, rate=RATE, options=QUALITY)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, 'yuv420p'
        for pixels in _frames(recording, told, renderer, summary, mission, recall):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, 'rgb24')))
        container.mux(stream.encode())


def _frames(
    recording: Recording,
    told: Sequence[GivenTask],
    renderer: SceneRenderer,
    summary: Mapping[str, str],
    mission: LastMission | None,
    recall: Recall | None = None,
) -> Iterator[np.ndarray]:
    """Yield the frames, uint8 [HEIGHT, WIDTH, 3] RGB."""
    if not recording.moments:
        return
    first, last = recording.moments[0].stamp, recording.moments[-1].stamp
    # The recording has a gap between the last task and the mission.
    before = recording.moment(mission.stamp) if mission else None
    end = min(before.stamp if before else last, first + int(LONGEST * 1e9))
    frame = np.full((HEIGHT, WIDTH, 3), 255, np.uint8)
    for at in range(first, end, PERIOD):
        frame = _frame(recording, page(recording, told, at), renderer, at)
        yield frame
    if mission and mission.ended is not None:
        for at in range(mission.stamp, min(last, mission.ended), HASTE * PERIOD):
            yield _frame(recording, mission_page(recording, mission, at), renderer, at)
        frame = _frame(recording, mission_page(recording, mission, mission.ended), renderer, last)
        yield from repeat(frame, round(STANDING * RATE))
    if recall and recall.given:
        frame = _frame(recording, killed_page(recording, recall), renderer, recall.killed)
        yield from repeat(frame, round(STANDING * RATE))
        told, begin = [recall.given], recall.given.stamp
        end = min(last, begin + int((recall.given.seconds + STANDING) * 1e9))
        for at in range(begin, end, PERIOD):
            frame = _frame(recording, page(recording, told, at), renderer, at)
            yield frame
    yield from repeat(_ending(frame, summary), round(ENDING * RATE))


def _frame(recording: Recording, page: Page, renderer: SceneRenderer, at: int) -> np.ndarray:
    moment = cast(TrueMoment, recording.moment(at))  # `at` is not before the first
    decision = recording.decision(at)
    path = decision.path(moment.joints, at) if decision else moment.joints[None]
    views = renderer.draw(moment, path)
    frame = _lettered(page).copy()
    _put(frame, views['front'], FRONT_AT)
    wrist = cv2.resize(views['wrist'], (WRIST, WRIST), interpolation=cv2.INTER_AREA)
    _put(frame, wrist, WRIST_AT)
    column, row = SMALL_AT
    for image in decision.seen.values() if decision else ():
        _put(
            frame,
            cv2.resize(image, (SMALL, SMALL), interpolation=cv2.INTER_NEAREST),
            (column, row),
        )
        row += SMALL + 8
    return frame


def _put(frame: np.ndarray, image: np.ndarray, corner: tuple[int, int]) -> None:
    column, row = corner
    frame[row : row + len(image), column : column + image.shape[1]] = image


def page(recording: Recording, told: Sequence[GivenTask], at: int) -> Page:
    """Return the texts at a time (ns)."""
    before = [task for task in told if task.stamp <= at]
    over = [task for task in before if task.stamp + task.seconds * 1e9 <= at]
    now = before[-1] if before else None
    said = recording.said(at, since=now.stamp if now else 0)
    lately = recording.said(at, since=at - int(ANSWERED * 1e9))
    answers = [pair for pair in lately.items() if pair[0] not in (SUBTASK, NARRATE)]
    return Page(
        title=now.instruction if now else '',
        mark=verdict(now) if now in over else ('', INK),
        seconds=(at - recording.moments[0].stamp) // 1_000_000_000,
        subtask=printable(said.get(SUBTASK, '').strip()),
        narration=printable(said.get(NARRATE, '').strip()),
        answered=printable('{} {}'.format(*answers[-1]).strip()) if answers else '',
        past=tuple(
            (*verdict(task), ': '.join(filter(None, (task.instruction, task.replaced))))
            for task in over
            if task is not now
        )[-PAST:],
    )


def mission_page(recording: Recording, mission: LastMission, at: int) -> Page:
    """Return the texts of a mission at a time (ns)."""
    is_over = mission.ended is not None and at >= mission.ended
    good = mission.done and mission.right
    mark = (('✓ done', DONE) if good else ('✗ not done', FAILED)) if is_over else ('', INK)
    said = mission.said[-1] if mission.said else mission.message
    begun = [step for step in mission.steps if step.stamp <= at]
    over = [step.stamp + step.seconds * 1e9 <= at for step in begun]
    steps = [
        (*(verdict(step) if past else ('…', GREY)), step.instruction)
        for step, past in zip(begun, over, strict=True)
    ]
    return replace(
        page(recording, begun, at),
        title=mission.errand.words,
        mark=mark,
        answered=printable(f'“{said}”') if is_over else '',
        past=tuple(steps[-PAST:]),
        pace=HASTE,
    )


def killed_page(recording: Recording, recall: Recall) -> Page:
    """Return the texts while the robot has no process."""
    return Page(
        title='',
        mark=('process killed', FAILED),
        seconds=(recall.killed - recording.moments[0].stamp) // 1_000_000_000,
        subtask='The process of the robot is killed.',
        narration=f'{(recall.restored - recall.killed) / 1e9:.0f} s later a new one has restored '
        'its capsule.',
        answered='',
        past=(),
    )


@lru_cache(1)
def _lettered(page: Page) -> np.ndarray:
    """Return a white frame with the texts: uint8 [HEIGHT, WIDTH, 3]."""
    figure, write = _sheet()
    title = f'“{page.title}”' if page.title else ''
    size = 19 if len(title) <= LONG else 13
    title = title if len(title) <= LONG else textwrap.fill(title, WRAPPED)
    write(12, 34, title, size=size, weight='bold', color=INK)
    pace = f'{page.pace}x speed   ' if page.pace > 1 else ''
    write(WIDTH - 12, 34, f'{pace}{page.seconds} s', size=13, ha='right')
    write(
        SMALL_AT[0] - 16, 34, page.mark[0], size=17, weight='bold', color=page.mark[1], ha='right'
    )
    write(
        FRONT_AT[0], 704, 'front camera; dots: planned path of the gripper, white next, red last'
    )
    write(WRIST_AT[0], 556, 'wrist camera')
    write(SMALL_AT[0], 75, 'policy input')
    write(SMALL_AT[0], SMALL_AT[1] + 2 * SMALL + 22, '64 x 64 pixels each')
    write(LABEL, 589, 'language', ha='right')
    write(SAID, 589, page.subtask, size=15, style='italic', color=INK)
    write(SAID, 615, page.narration, size=12, style='italic', color=INK)
    answer = textwrap.wrap(page.answered, ANSWER, max_lines=2)
    if answer:
        write(LABEL, 638, 'answer', ha='right')
    for i, line in enumerate(answer):
        write(SAID, 638 + 18 * i, line, size=12)
    for i, (mark, colour, words) in enumerate(page.past):
        row = 662 + 16 * (len(answer) > 1) + 16 * i
        write(LABEL, row, mark, color=colour, ha='right', weight='bold')
        write(SAID, row, words)
    return _pixels(figure)


def _ending(frame: np.ndarray, summary: Mapping[str, str]) -> np.ndarray:
    """Return a frame with the summary over the last picture."""
    figure, write = _sheet()
    row = 200
    for name, line in summary.items():
        write(90, row, name, size=17, weight='bold', color=INK)
        for part in textwrap.wrap(printable(line), 84):
            write(290, row, part, size=15, color=INK)
            row += 30
        row += 26
    return cv2.addWeighted(_pixels(figure), 0.88, frame, 0.12, 0)


def _sheet():
    """Return an empty figure of the size of a frame, and a function that writes text on it."""
    figure = Figure((WIDTH / DPI, HEIGHT / DPI), dpi=DPI, facecolor='white')

    def write(column: float, row: float, words: str, **style: object) -> None:
        style = dict(size=10, color=GREY, va='center', parse_math=False) | style
        figure.text(column / WIDTH, 1 - row / HEIGHT, words, **style)

    return figure, write


def _pixels(figure: Figure) -> np.ndarray:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
