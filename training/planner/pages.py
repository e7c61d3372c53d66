"""Prompts in tokens with many questions behind each, and how they become one lesson.

Knows token ids and labels. Does not know words, worlds, the model or an optimiser.
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
PARTS = 4  # of a mission, and what comes behind the last
THREADS = (len(LOCATIONS), len(ENDS), len(LIDS), TASKS, len(LOCATIONS), PARTS)
THINGS = len(OBJECT_NAMES)


@dataclass(frozen=True, eq=False)
class Lesson:
    """Prompts, right-padded, and behind each some lines of questions with their answers.

    memory: long [B, M]. lengths: long [B]. packed, segment, offset, answer: long [B, N, L], as in
    `objective.Batch`; a line has questions; what facts are about, alone and as questions name it,
    fills what room is left.

    threads: long [B, M + N * L, 6], EMPTY where there is nothing to know: which of LOCATIONS a
    thing is in or on, to which of ENDS its thread leads, which of LIDS is closed around it, a
    task's number, less 1, which of LOCATIONS its thing came from, and in which part of a mission a
    word stands, from 0. A task's record leads from its receptacle to its object; so does a
    receptacle's note of what was last put there, or a question that asks for it; the robot's state
    to what it holds, or to itself. As far as what was read before tells. Known of a segment at its
    last token, of a thing where a record or a question names it, at a question's end of what it is
    about unsaid.

    meant_at: long [S, 2], prompts and tokens of [M + N * L] at which things are meant; meant:
    float [S, THINGS], 1 for each of OBJECT_NAMES that is: what a receptacle holds at the end of
    its segment, what words of a mission are about at theirs, what is still to be moved at the end
    of a mission's question.

    truths: of the questions, in order: kind and hops of each.
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
    """A question, or a name or number alone, which has no answer.

    answer: what follows each of the last ids. threads, meant: by index in ids; meant in names.
    begin: where it stands behind the memory.
    """

    ids: list[int]
    answer: list[int]
    threads: dict[int, tuple[int, ...]]
    truth: tuple[str, int] | None = None
    begin: int = 0
    meant: dict[int, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """A prompt. memory: ids; threads, meant: by index in them. lines: of what is asked."""

    memory: list[int]
    threads: dict[int, tuple[int, ...]]
    lines: list[list[Asked]]
    meant: dict[int, list[str]] = field(default_factory=dict)


def lesson_of(pages: Sequence[Page], line: int, tokenizer: Tokenizer) -> Lesson:
    """The pages side by side; line: tokens of each of their lines."""
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
