"""Memory segments from the topics of the suite: instructions, answers and finished tasks.

A `NoteTaker` numbers task records and decides which frames count; its `Domain` decides what a
sentence means. It returns memory segments as (id, kind, text).

Answers arrive in any order, because a stream that a capsule restores is about an old frame; for
each object the newest frame counts. While a mission runs, it evaluates its own scene queries, and
single answers are ignored (`follow_mission`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from embodied_kv.planning.domain import Domain, Draft

TASK = re.compile(r'task (\d{1,9})')
INSTRUCTION_DELAY = 150_000_000  # delay (ns) after which frames reflect an instruction


class NoteTaker:
    """Converts instructions and answers to memory segments.

    `tasks` is the number of task records that are kept (0: none); the oldest is overwritten.
    `known` has the (id, step) of the existing segments.
    """

    def __init__(self, domain: Domain, tasks: int, known: Iterable[tuple[str, int]] = ()) -> None:
        self._domain, self._tasks = domain, tasks
        found = ((step, TASK.fullmatch(id)) for id, step in known)
        records = sorted((step, int(match[1])) for step, match in found if match)
        self._numbers = [number for _, number in records]  # oldest first
        self._instruction, self._told, self._done = '', 0, False
        self._is_over = False  # the arm was brought to rest after it was done
        self._number = 0  # of the record of the current instruction; 0 before it is written
        self._newest: dict[str, int] = {}  # stamp of the newest frame with a statement, by id
        self._since = 0
        self._looked = -math.inf  # stamp (ns) until which only the mission's scene queries count

    def begin(self, stamp: int) -> None:
        """Ignore frames from before `stamp` (ns), which may be older than memory."""
        self._since = stamp
        self._newest.clear()
        self._told = min(self._told, stamp)  # else a clock that was set back would block records
        if self._looked < math.inf:
            self._looked = -math.inf

    def follow_mission(self, running: bool, stamp: int) -> None:
        """Record that a mission runs, or ended at `stamp` (ns).

        Single answers about frames until its end are ignored: the mission compares answers, and
        writes those that are plausible.
        """
        if running or self._looked == math.inf:
            self._looked = math.inf if running else stamp
            self._is_over = self._done and not running

    def tell(self, instruction: str, stamp: int) -> list[Draft]:
        """Record an instruction as of `stamp` (ns); return that of the last one if unfinished."""
        instruction = instruction.strip()
        if not instruction:
            # A mission repeats a step under the number of its record.
            self._is_over = self._done and self._looked < math.inf
            return []
        if instruction == self._instruction and not self._is_over:
            return []
        over = []
        if self._instruction and not self._done:
            over = self._record(self._domain.record(self._instruction, False, ()))
        self._instruction, self._told, self._done, self._number = instruction, stamp, False, 0
        self._is_over = False
        return over

    def hear(self, query: str, answer: str, stamp: int) -> list[Draft]:
        """Return what a complete answer about the frame of `stamp` (ns) states.

        A frame from before the instruction is ignored for its task, and an older frame for an
        object with a newer statement.
        """
        news = []
        if stamp >= self._since:
            for id, kind, text in self._learn(query.strip(), answer.strip(), stamp):
                counts = kind == 'task' or stamp > self._looked
                if counts and stamp >= self._newest.get(id, stamp):
                    self._newest[id] = stamp
                    news.append((id, kind, text))
        return news

    def _learn(self, query: str, answer: str, stamp: int) -> list[Draft]:
        if found := self._domain.facts_of_answer(query, answer):
            return found
        if not self._instruction or stamp < self._told + INSTRUCTION_DELAY:
            return []
        if not self._done and self._domain.says_done(query, answer):
            self._done = True
            return self._record(self._domain.record(self._instruction, True, ()))
        return self._domain.facts_of_narration(query, answer) if self._done else []

    def conclude(self, text: str) -> list[Draft]:
        """Return the record `text` of a finished task, and the facts that follow from it.

        It replaces the record of the current instruction, if it is about that instruction.
        """
        own = self._instruction and f'{text},'.startswith(f'{self._instruction},')
        number = self._number
        drafts = self._record(text, number if own else 0)
        if own:
            self._done = True
        else:
            self._number = number  # still that of the current instruction
        return drafts + (self._domain.facts_of_record(drafts[0]) if drafts else [])

    def _record(self, text: str, number: int = 0) -> list[Draft]:
        if not self._tasks:
            return []
        if not number:  # a new record
            number = self._next_number()
            self._numbers.append(number)
        self._number = number
        return [(f'task {number}', 'task', f'task {number}: {text}')]

    def _next_number(self) -> int:
        """Return the next free number after the newest, or the oldest if none is free."""
        if len(self._numbers) >= self._tasks:
            return self._numbers.pop(0)
        newest = self._numbers[-1] if self._numbers else 0
        numbers = ((newest + i) % self._tasks + 1 for i in range(self._tasks))
        return next(number for number in numbers if number not in self._numbers)
