"""The questions about each frame, and the correct answers.

This module knows frames and their truth, not actors. A frame's questions depend on its scene and
number only, so that every serving mode is asked the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from embodied_kv.demo.sim.covers import uncovered
from embodied_kv.demo.sim.language import (
    NARRATE,
    SCENE_QUESTIONS,
    SUBTASK,
    ask_done,
    narrate,
    say_subtask,
)
from embodied_kv.demo.sim.tables import Orders, Tables
from training.evaluate.cases import Case, Frame
from training.evaluate.worlds import QUESTION_RNG
from training.policy.expert import plan

# what: (period in frames, frame in the period)
SCHEDULE = {'subtask': (2, 0), 'scene': (2, 1), 'narrate': (5, 2), 'done': (5, 4)}


@dataclass(frozen=True)
class Question:
    """A question about a frame. kind: SCHEDULE's, or SCENE_QUESTIONS'. truth: correct answer."""

    case: Case
    number: int
    kind: str
    text: str
    truth: str


@dataclass(frozen=True)
class Answer:
    """The answer to a question."""

    question: Question
    said: str

    @property
    def is_exact(self) -> bool:
        return self.said.strip() == self.question.truth


def most_streams(frames: int) -> int:
    """Return the largest number of questions to a robot in successive frames."""
    return sum(ceil(frames / every) for every, _ in SCHEDULE.values())


def expert_plan(frames: Sequence[Frame], chunk_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the expert's chunks [frames, chunk, 7] and the current phases, int [frames]."""
    names = [[thing.name for thing in frame.truth.things] for frame in frames]
    orders = Orders.of([frame.told for frame in frames], names)
    states = np.stack([frame.observation.state for frame in frames])
    return plan(states, Tables.of([frame.truth for frame in frames]), orders, chunk_size)


def subtask_of(frame: Frame, phase: int) -> str:
    """Return the correct answer to SUBTASK, which is also needed for adjacent frames."""
    return say_subtask(phase, frame.told, frame.truth)


def questions(frame: Frame, phase: int) -> list[Question]:
    """Return the questions about a frame."""
    asked = []
    for what, (every, turn) in SCHEDULE.items():
        if frame.number % every == turn:
            kind, pair = _ask(what, frame, phase)
            if pair is not None:
                asked.append(Question(frame.case, frame.number, kind, *pair))
    return asked


def every_question(frame: Frame, phase: int) -> list[Question]:
    """Return one question of every kind that the frame allows."""
    asked = {what: _ask(what, frame, phase)[1] for what in SCHEDULE if what != 'scene'}
    rng = np.random.default_rng((frame.scene, QUESTION_RNG, frame.number))
    asked |= {kind: ask(uncovered(frame.truth), rng) for kind, ask in SCENE_QUESTIONS.items()}
    return [
        Question(frame.case, frame.number, kind, *pair)
        for kind, pair in asked.items()
        if pair is not None
    ]


def _ask(what: str, frame: Frame, phase: int) -> tuple[str, tuple[str, str] | None]:
    """Return the kind of a question and, if the frame allows it, its text and truth."""
    match what:
        case 'subtask':
            return what, (SUBTASK, subtask_of(frame, phase))
        case 'narrate':
            return what, (NARRATE, narrate(phase, frame.told, frame.truth))
        case 'done':
            return what, ask_done(phase, frame.told, frame.truth)
    kinds = list(SCENE_QUESTIONS)
    kind = kinds[frame.number // SCHEDULE['scene'][0] % len(kinds)]
    rng = np.random.default_rng((frame.scene, QUESTION_RNG, frame.number))
    return kind, SCENE_QUESTIONS[kind](uncovered(frame.truth), rng)
