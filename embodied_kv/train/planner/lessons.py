"""Households as the planner reads them: prompts in tokens, and many questions behind each.

Knows households, words and token ids. Does not know the model or an optimiser.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from embodied_kv.model.planner_words import HEAD, answer_words, question_words, segment_words
from embodied_kv.model.tokenizer import Tokenizer
from embodied_kv.sim.household import (
    CARRIER_NAMES,
    LIDDED_NAMES,
    OBJECT_NAMES,
    ROBOT,
    TABLES,
    TASKS,
    Fact,
    Household,
    draw_household,
    into,
)
from embodied_kv.sim.household_questions import Answer, Question, answer, draw_question
from embodied_kv.train.common.objective import EMPTY
from embodied_kv.train.planner.corpus import NAMES

LINE = 44  # tokens of a line of questions: two of the longest
DROPPED = 0.1  # of the facts of half the households, as when not all is in view
KINDS = {'next': 0.36, 'table': 0.25, 'last': 0.2, 'where': 0.07, 'lid': 0.05, 'held': 0.07}
ABOUT = {'last': 'last {y}', 'held': ROBOT, 'next': ROBOT}  # what a question is about unsaid
LOCATIONS = (*LIDDED_NAMES, *CARRIER_NAMES, *TABLES, ROBOT)
ENDS = (*TABLES, ROBOT, *OBJECT_NAMES)
LIDS = (*LIDDED_NAMES, 'none')
THREADS = (len(LOCATIONS), len(ENDS), len(LIDS), TASKS)


@dataclass(frozen=True, eq=False)
class Lesson:
    """Prompts, right-padded, and behind each some lines of questions with their answers.

    memory: long [B, M]. lengths: long [B]. packed, segment, offset, answer: long [B, N, L], as in
    `objective.Batch`; a line has questions; what facts are about, alone and as questions name it,
    fills what room is left.

    threads: long [B, M + N * L, 4], EMPTY where there is nothing to know: which of LOCATIONS a
    thing is in or on, to which of ENDS its thread leads, which of LIDS is closed around it, and a
    task's number, less 1. A task's record leads from its receptacle to its object; so does a
    receptacle's note of what was last put there, or a question that asks for it; the robot's state
    to what it holds, or to itself. As far as what was read before tells. Known of a segment at its
    last token, of a thing where a record or a question names it, at a question's end of what it is
    about unsaid.

    truths: of the questions, in order: kind and hops of each.
    """

    memory: Tensor
    lengths: Tensor
    packed: Tensor
    segment: Tensor
    offset: Tensor
    answer: Tensor
    threads: Tensor
    truths: tuple[tuple[str, int], ...]


def lines_of(segments: int) -> int:
    """Behind a prompt of so many segments."""
    return 4 + segments // 20


def tokens_of(segments: int) -> int:
    """About how many a prompt of so many segments has, with its lines."""
    return 8 * segments + LINE * lines_of(segments)


class LessonSampler:
    """Draws lessons; each is a function of the generator it is given."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._encode = tokenizer, lru_cache(None)(tokenizer.encode)
        self._names = {self._encode(f' {name}')[0]: name for name in NAMES}

    def lesson(
        self,
        rng: np.random.Generator,
        prompts: int,
        segments: int,
        kinds: dict[str, float] = KINDS,
    ) -> Lesson:
        """Prompts of so many segments, asked as much as goes into their lines; kinds: shares."""
        lines = lines_of(segments)
        pages = [self._page(rng, segments, lines, kinds) for _ in range(prompts)]
        length = max(len(page.memory) for page in pages)
        shape = (prompts, lines, LINE)
        memory = np.full((prompts, length), self._tokenizer.pad)
        threads = np.full((prompts, length + lines * LINE, len(THREADS)), EMPTY)
        packed, segment = np.full(shape, self._tokenizer.pad), np.full(shape, -1)
        offset, said = np.zeros(shape, int), np.full(shape, EMPTY)
        for b, page in enumerate(pages):
            memory[b, : len(page.memory)] = page.memory
            for at, thread in page.threads.items():
                threads[b, at] = thread
            for n, line in enumerate(page.lines):
                begin = 0
                for s, asked in enumerate(line):
                    end = begin + len(asked.ids)
                    packed[b, n, begin:end], segment[b, n, begin:end] = asked.ids, s
                    offset[b, n, begin:end] = asked.begin + np.arange(len(asked.ids))
                    said[b, n, end - len(asked.answer) : end] = asked.answer
                    for at, thread in asked.threads.items():
                        threads[b, length + n * LINE + begin + at] = thread
                    begin = end
        return Lesson(
            memory=torch.from_numpy(memory),
            lengths=torch.tensor([len(page.memory) for page in pages]),
            packed=torch.from_numpy(packed),
            segment=torch.from_numpy(segment),
            offset=torch.from_numpy(offset),
            answer=torch.from_numpy(said),
            threads=torch.from_numpy(threads),
            truths=tuple(
                a.truth for page in pages for line in page.lines for a in line if a.truth
            ),
        )

    def _page(
        self, rng: np.random.Generator, segments: int, lines: int, kinds: dict[str, float]
    ) -> _Page:
        household = draw_household(rng, segments)
        facts = in_some_order(rng, household)
        if rng.random() < 0.5:
            facts = [fact for fact in facts if rng.random() > DROPPED]
        memory, threads = [self._tokenizer.bos, *self._encode(HEAD)], {}
        seen: set[str] = set()
        for fact in facts:
            ids = self._encode(segment_words(fact.text))
            for at, id in enumerate(ids[:-1]):
                if fact.kind == 'task' and id in self._names:
                    threads[len(memory) + at] = thread(household, self._names[id], seen)
            memory += ids
            seen.add(fact.id)
            threads[len(memory) - 1] = thread(household, fact.id, seen)
        records = [f'task {number}' for number in household.tasks]
        notes = [f'last {receptacle}' for receptacle in household.last]
        named = [id for id in (*household.where, *records, *records, *notes) if id in seen]
        page = _Page(memory, threads, [[] for _ in range(lines)])
        drawn = iter(rng.choice(list(kinds), 16 * lines, p=list(kinds.values())).tolist())
        for line in page.lines:
            room = LINE
            for kind in drawn:
                question = draw_question(rng, household, kind)
                truth = answer(question, household)
                if not truth.ids <= seen:
                    continue
                asked = self._asked(household, question, truth, seen)
                room -= len(asked.ids)
                if room < 0:
                    break
                line.append(asked)
            room = LINE - sum(len(asked.ids) for asked in line)
            for i in rng.integers(len(named), size=room if named else 0).tolist():
                ids = self._encode(self._name_of(named[i]))
                if (room := room - len(ids)) < 0:
                    break
                known = {len(ids) - 1: thread(household, named[i], seen)}
                line.append(_Asked(ids, [], known, begin=int(rng.integers(LINE // 2))))
        return page

    @staticmethod
    def _name_of(id: str) -> str:
        """As questions name what a fact is about."""
        if id.startswith('last '):
            return f' last put {into(id.removeprefix("last "))}'
        return f' {id.removeprefix("task ")}'

    def _asked(
        self, household: Household, question: Question, truth: Answer, seen: set[str]
    ) -> _Asked:
        ids = self._encode(question_words(question.text))
        said = self._encode(answer_words(truth.text))
        threads = {}
        for name in filter(None, (question.thing, question.place)):
            (token,) = self._encode(f' {name}')
            about = f'last {name}' if question.kind == 'last' else name
            threads[ids.index(token)] = thread(household, about, seen)
        if question.kind in ABOUT:
            threads[len(ids) - 1] = thread(
                household, ABOUT[question.kind].format(y=question.place), seen
            )
        return _Asked(
            [*ids, *said], [*said, self._tokenizer.eos], threads, (question.kind, truth.hops)
        )


@dataclass(frozen=True)
class _Asked:
    """A question, or a name or number alone, which has no answer.

    answer: what follows each of the last ids. begin: where it stands behind the memory.
    """

    ids: list[int]
    answer: list[int]
    threads: dict[int, tuple[int, ...]]
    truth: tuple[str, int] | None = None
    begin: int = 0


@dataclass(frozen=True)
class _Page:
    memory: list[int]
    threads: dict[int, tuple[int, ...]]
    lines: list[list[_Asked]]


def thread(household: Household, id: str, seen: set[str]) -> tuple[int, ...]:
    """What is to be known of a fact where those of `seen` have been read; see `Lesson`."""
    location = end = lid = number = EMPTY
    if id in household.where:
        around = household.around(id)
        location = LOCATIONS.index(around[0]) if id in seen else EMPTY
        told_by = [id, *around[:-1]]  # the facts that say where it is in the end
        if seen.issuperset(told_by):
            end = ENDS.index(around[-1])
            lid = LIDS.index(household.lid(id) or 'none')
    elif id == ROBOT:
        end = ENDS.index(household.held or ROBOT) if id in seen else EMPTY
    else:
        kind, name = id.split(' ', 1)
        task = int(name) if kind == 'task' else household.last[name]
        if id in seen:
            number = task - 1
            location = LOCATIONS.index(household.tasks[task][1])
        if {id, f'task {task}'} <= seen:
            end = ENDS.index(household.tasks[task][0])
    return location, end, lid, number


def in_some_order(rng: np.random.Generator, household: Household) -> list[Fact]:
    """Facts in any order, or, as often, with those near each other that lie near each other."""
    facts = household.facts()
    luck = rng.random(len(facts))
    if rng.random() < 0.5:
        ranks: dict[str, float] = {}
        for i, fact in enumerate(facts):
            where = household.around(fact.id)
            top = ([fact.id, *where[:-1]] if where else [fact.kind])[-1]
            luck[i] = ranks.setdefault(top, rng.random()) + 1e-3 * luck[i]
    return [facts[i] for i in luck.argsort()]
