"""Missions as inputs of the planner: a table's memory in tokens, and many questions behind it.

This module knows cases, words and token ids. It knows neither the model nor an optimiser.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from embodied_kv.demo.sim.table_memory import TABLE
from embodied_kv.model.planner_prompts import HEAD, answer_words, question_words, segment_words
from embodied_kv.model.tokenizer import Tokenizer
from training.common.batch import EMPTY
from training.planner.corpus import NAMES
from training.planner.household import ROBOT, TASKS, any_of
from training.planner.mission_cases import Case, draw_moment, in_some_order
from training.planner.mission_draws import draw_part
from training.planner.mission_phrases import say_which
from training.planner.missions import ImpossibleMissionError
from training.planner.pages import ENDS, LOCATIONS, Asked, Lesson, Page, lesson_of
from training.planner.simulated_table import SimulatedTable

LINE = 160  # tokens of a line of questions: two of the longest
LINES = 4
PART = 'part '  # text before the number of the part in a question


def tokens_of(records: int) -> int:
    """Return the approximate number of tokens of a prompt with its lines."""
    return 90 + 15 * records + LINE * LINES


class MissionSampler:
    """Draws lessons; each is a function of the given generator."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._encode = tokenizer, lru_cache(2**16)(tokenizer.encode)
        self._names = {self._encode(f' {name}')[0]: name for name in NAMES}
        self._numbers = {self._encode(f' {n}')[0]: n for n in range(1, TASKS + 1)}

    def lesson(self, rng: np.random.Generator, prompts: int, records: int) -> Lesson:
        """Draw prompts with histories of `records` records at first."""
        pages = [self._page(rng, records) for _ in range(prompts)]
        return lesson_of(pages, LINE, self._tokenizer)

    def _page(self, rng: np.random.Generator, records: int) -> Page:
        table, cases = draw_moment(rng, records)
        memory, threads, meant = [self._tokenizer.bos, *self._encode(HEAD)], {}, {}
        seen: set[str] = set()
        for fact in in_some_order(rng, table.facts()):
            memory += self._encode(segment_words(fact.text))
            seen.add(fact.id)
            if fact.id in table.places:
                meant[len(memory) - 1] = table.inside(fact.id)
            else:
                threads[len(memory) - 1] = thread(table, fact.id, seen)
        lines: list[list[Asked]] = []
        while len(lines) < LINES:
            line, room = [], LINE
            while (room := room - len((asked := self._asked(table, next(cases))).ids)) >= 0:
                line.append(asked)
            room += len(asked.ids)
            while (room := room - len((asked := self._alone(rng, table)).ids)) >= 0:
                line.append(asked)
            lines.append(line)
        return Page(memory, threads, lines, meant)

    def _asked(self, table: SimulatedTable, case: Case) -> Asked:
        ids = self._encode(question_words(case.question))
        said = self._encode(answer_words(case.truth))
        threads, meant, start = {}, {len(ids) - 1: list(case.left)}, ''
        for number, (words, things) in enumerate(zip(case.said, case.meant, strict=True)):
            first = len(self._encode(f'\nQ: mission: {start}'))
            start += words
            end = len(self._encode(f'\nQ: mission: {start}'))
            for at in range(first, end):
                threads[at] = (*self._known(table, ids[at])[:5], number)
            if things is not None:
                meant[end - 1] = list(things)
        for at in range(len(self._encode(f'\nQ: mission: {start}')), len(ids)):
            if (known := self._known(table, ids[at])) != _nothing():
                threads[at] = known
        part = len(self._encode(f'\nQ: mission: {start}; {PART}{case.progress.part + 1}')) - 1
        threads[part] = (*_nothing()[:5], case.progress.part)
        kind = f'mission {case.kind}', int(bool(case.progress.tail))
        return Asked([*ids, *said], [*said, self._tokenizer.eos], threads, kind, meant=meant)

    def _alone(self, rng: np.random.Generator, table: SimulatedTable) -> Asked:
        """Return words for things, a name, or a record's number, without a question."""
        begin, luck = int(rng.integers(LINE // 2)), rng.random()
        if luck < 0.4:
            which = draw_part(rng, table, 'take' if luck < 0.16 else 'put').which
            try:
                things = which.of(table)
            except ImpossibleMissionError:
                things = []
            ids = self._encode(f' {say_which(which, rng)}')
            if things and not (which.place and (which.names or which.word)):
                return Asked(ids, [], {}, begin=begin, meant={len(ids) - 1: things})
        if luck < 0.8 and table.records:
            number = any_of(rng, list(table.records))
            known = thread(table, f'task {number}', {f'task {number}'})
            return Asked(self._encode(f' {number}'), [], {0: known}, begin=begin)
        name = any_of(rng, [*table.where, *table.places])
        (token,) = self._encode(f' {name}')
        if name in table.places:
            return Asked([token], [], {}, begin=begin, meant={0: table.inside(name)})
        return Asked([token], [], {0: self._known(table, token)}, begin=begin)

    def _known(self, table: SimulatedTable, token: int) -> tuple[int, ...]:
        """Return the labels of a thing that a question names, or of a record by its number."""
        name, number = self._names.get(token), self._numbers.get(token)
        if name in table.where:
            return thread(table, name, {name})
        if number in table.moves:
            return thread(table, f'task {number}', {f'task {number}'})
        return _nothing()


def _nothing() -> tuple[int, ...]:
    return (EMPTY,) * 6


def thread(table: SimulatedTable, id: str, seen: set[str]) -> tuple[int, ...]:
    """Return the labels of a fact after the facts of `seen` have been read; see `Lesson`."""
    location = end = number = origin = EMPTY
    if id in table.where:
        location = LOCATIONS.index(table.where[id])
    elif id == ROBOT:
        end = ENDS.index(table.held or ROBOT)
    else:
        task = table.last[id.removeprefix('last ')] if id.startswith('last ') else int(id[5:])
        record = table.records[task]
        number = task - 1
        if f'task {task}' in seen:
            end = ENDS.index(record.task.target)
            if record.moved:
                place = record.task.place if record.task.family == 'put' else TABLE
                location = LOCATIONS.index(place)
                origin = LOCATIONS.index(record.origin)
    return location, end, EMPTY, number, origin, EMPTY
