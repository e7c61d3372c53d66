"""Households as inputs of the planner: prompts in tokens, and many questions behind each.

This module knows households, words and token ids. It knows neither the model nor an optimiser.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from embodied_kv.model.planner_prompts import HEAD, answer_words, question_words, segment_words
from embodied_kv.model.tokenizer import Tokenizer
from training.common.batch import EMPTY
from training.planner.corpus import NAMES
from training.planner.household import ROBOT, Fact, Household, draw_household, into
from training.planner.household_questions import Answer, Question, answer, draw_question
from training.planner.pages import (
    ENDS,
    LIDS,
    LOCATIONS,
    Asked,
    Lesson,
    Page,
    lesson_of,
)

LINE = 44  # tokens of a line of questions: two of the longest
DROPPED = 0.1  # share of facts that half of the households lack, as if out of view
KINDS = {'next': 0.36, 'table': 0.25, 'last': 0.2, 'where': 0.07, 'lid': 0.05, 'held': 0.07}
ABOUT = {'last': 'last {y}', 'held': ROBOT, 'next': ROBOT}  # implicit subject of a question


def lines_of(segments: int) -> int:
    """Return the number of question lines behind a prompt of `segments` segments."""
    return 4 + segments // 20


def tokens_of(segments: int) -> int:
    """Return the approximate number of tokens of a prompt with its lines."""
    return 8 * segments + LINE * lines_of(segments)


class LessonSampler:
    """Draws lessons; each is a function of the given generator."""

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
        """Draw prompts of `segments` segments, with as many questions as fit into their lines.

        kinds: shares of the kinds of questions.
        """
        lines = lines_of(segments)
        pages = [self._page(rng, segments, lines, kinds) for _ in range(prompts)]
        return lesson_of(pages, LINE, self._tokenizer)

    def _page(
        self, rng: np.random.Generator, segments: int, lines: int, kinds: dict[str, float]
    ) -> Page:
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
        page = Page(memory, threads, [[] for _ in range(lines)])
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
                line.append(Asked(ids, [], known, begin=int(rng.integers(LINE // 2))))
        return page

    @staticmethod
    def _name_of(id: str) -> str:
        """Return the words by which questions name the subject of a fact."""
        if id.startswith('last '):
            return f' last put {into(id.removeprefix("last "))}'
        return f' {id.removeprefix("task ")}'

    def _asked(
        self, household: Household, question: Question, truth: Answer, seen: set[str]
    ) -> Asked:
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
        return Asked(
            [*ids, *said], [*said, self._tokenizer.eos], threads, (question.kind, truth.hops)
        )


def thread(household: Household, id: str, seen: set[str]) -> tuple[int, ...]:
    """Return the labels of a fact after the facts of `seen` have been read; see `Lesson`."""
    location = end = lid = number = EMPTY
    if id in household.where:
        around = household.around(id)
        location = LOCATIONS.index(around[0]) if id in seen else EMPTY
        told_by = [id, *around[:-1]]  # the facts that determine its end
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
    """Return facts in random order or, as often, grouped by location."""
    facts = household.facts()
    luck = rng.random(len(facts))
    if rng.random() < 0.5:
        ranks: dict[str, float] = {}
        for i, fact in enumerate(facts):
            where = household.around(fact.id)
            top = ([fact.id, *where[:-1]] if where else [fact.kind])[-1]
            luck[i] = ranks.setdefault(top, rng.random()) + 1e-3 * luck[i]
    return [facts[i] for i in luck.argsort()]
