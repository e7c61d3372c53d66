"""Prompts in tokens with many questions behind each, and their collation into a lesson.

This module knows token ids and labels. It knows neither words, worlds, the model nor an optimiser.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from embodied_kv.demo.sim.table_memory import FLOOR, TABLE
from embodied_kv.model.tokenizer import Tokenizer
from training.common.batch import EMPTY
from training.planner.household import (
    CARRIER_NAMES,
    LIDDED_NAMES,
    OBJECT_NAMES,
    ROBOT,
    TABLES,
    TASKS,
)

LOCATIONS = (*LIDDED_NAMES, *CARRIER_NAMES, *TABLES, ROBOT, TABLE, FLOOR)
ENDS = (*TABLES, ROBOT, *OBJECT_NAMES)
LIDS = (*LIDDED_NAMES, 'none')
PARTS = 4  # of a mission, and its end
THREADS = (len(LOCATIONS), len(ENDS), len(LIDS), TASKS, len(LOCATIONS), PARTS)
THINGS = len(OBJECT_NAMES)


@dataclass(frozen=True, eq=False)
class Lesson:
    """Prompts, right-padded, and behind each some lines of questions with their answers.

    memory: long [B, M]. lengths: long [B]. packed, segment, offset, answer: long [B, N, L], as in
    `training.common.batch.Batch`; a line has questions; words for things, names and numbers
    without a question fill the remaining room.

    threads: long [B, M + N * L, 6], EMPTY where nothing is known: index in LOCATIONS of where a
    thing is, index in ENDS of the end of its thread, index in LIDS of what is closed around it,
    number of a task, less 1, index in LOCATIONS of where its thing came from, and the part of a
    mission that a word belongs to, from 0. The thread of a task's record leads from its receptacle
    to its object; so does that of a receptacle's note of its last task, and of a question that
    asks for it; that of the robot's state leads to what it holds, or to itself. All labels depend
    only on what was read before. A segment has them at its last token, a thing where a record or a
    question names it, the implicit subject of a question at the question's end.

    meant_at: long [S, 2], prompts and tokens of [M + N * L] at which things are meant; meant:
    float [S, THINGS], 1 for each of OBJECT_NAMES that is: the contents of a receptacle at the end
    of its segment, the things that words of a mission refer to at the end of these words, the
    things that are still to be moved at the end of a mission's question.

    truths: kind and hops of each question, in order.
    """

    memory: Tensor
    lengths: Tensor
    packed: Tensor
    segment: Tensor
    offset: Tensor
    answer: Tensor
    threads: Tensor
    meant_at: Tensor
    meant: Tensor
    truths: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Asked:
    """A question, or words, a name or a number alone, which have no answer.

    answer: what follows each of the last ids. threads, meant: by index in ids; meant in names.
    begin: offset of the first token behind the memory.
    """

    ids: list[int]
    answer: list[int]
    threads: dict[int, tuple[int, ...]]
    truth: tuple[str, int] | None = None
    begin: int = 0
    meant: dict[int, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """A prompt. memory: ids; threads, meant: by index in them. lines: of questions."""

    memory: list[int]
    threads: dict[int, tuple[int, ...]]
    lines: list[list[Asked]]
    meant: dict[int, list[str]] = field(default_factory=dict)


def lesson_of(pages: Sequence[Page], line: int, tokenizer: Tokenizer) -> Lesson:
    """Collate pages into a lesson. line: tokens of each of their lines."""
    length, lines = max(len(page.memory) for page in pages), len(pages[0].lines)
    shape = (len(pages), lines, line)
    memory = np.full((len(pages), length), tokenizer.pad)
    threads = np.full((len(pages), length + lines * line, len(THREADS)), EMPTY)
    packed, segment = np.full(shape, tokenizer.pad), np.full(shape, -1)
    offset, said = np.zeros(shape, int), np.full(shape, EMPTY)
    meant: list[tuple[int, int, list[str]]] = []
    for b, page in enumerate(pages):
        memory[b, : len(page.memory)] = page.memory
        for at, thread in page.threads.items():
            threads[b, at, : len(thread)] = thread
        meant += [(b, at, names) for at, names in page.meant.items()]
        for n, asked_in_line in enumerate(page.lines):
            begin = 0
            for s, asked in enumerate(asked_in_line):
                end, first = begin + len(asked.ids), length + n * line + begin
                packed[b, n, begin:end], segment[b, n, begin:end] = asked.ids, s
                offset[b, n, begin:end] = asked.begin + np.arange(len(asked.ids))
                said[b, n, end - len(asked.answer) : end] = asked.answer
                for at, thread in asked.threads.items():
                    threads[b, first + at, : len(thread)] = thread
                meant += [(b, first + at, names) for at, names in asked.meant.items()]
                begin = end
    truths = (a.truth for page in pages for asked in page.lines for a in asked if a.truth)
    return Lesson(
        memory=torch.from_numpy(memory),
        lengths=torch.tensor([len(page.memory) for page in pages]),
        packed=torch.from_numpy(packed),
        segment=torch.from_numpy(segment),
        offset=torch.from_numpy(offset),
        answer=torch.from_numpy(said),
        threads=torch.from_numpy(threads),
        meant_at=torch.tensor([(b, at) for b, at, _ in meant], dtype=torch.long).view(-1, 2),
        meant=torch.tensor([_marks(names) for *_, names in meant]).view(-1, THINGS),
        truths=tuple(truths),
    )


def _marks(names: Sequence[str]) -> list[float]:
    return [float(name in names) for name in OBJECT_NAMES]
