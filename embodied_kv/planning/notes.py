"""What memory learns from the suite's own topics: instructions, answers and finished tasks.

A `NoteTaker` numbers task records and decides which frame's statements count; its `Domain` decides
what a statement means. It returns memory segments as (id, kind, text).

Answers arrive in any order, because a stream that a capsule restores speaks about an old frame.
About each thing, the statement of the newest frame counts. While a mission runs, the mission
decides what its own looks have shown, and single answers are ignored (`follow_mission`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from embodied_kv.planning.domain import Domain, Draft

TASK = re.compile(r'task (\d{1,9})')
HEARD = 150_000_000  # ns after which an instruction has reached the robot's frames


class NoteTaker:
    """Turns what is said into memory segments.

    Args:
        domain: The meaning of instructions and answers.
        tasks: How many task records are kept; 0 for none. The oldest is overwritten.
        known: The (id, step) of the segments that exist.
    """

    def __init__(self, domain: Domain, tasks: int, known: Iterable[tuple[str, int]] = ()) -> None:
        self._domain, self._tasks = domain, tasks
        found = ((step, TASK.fullmatch(id)) for id, step in known)
        records = sorted((step, int(match[1])) for step, match in found if match)
        self._numbers = [number for _, number in records]  # oldest first
        self._instruction, self._told, self._done = '', 0, False
        self._number = 0  # of the record of the instruction in force; 0 before it is written
        self._newest: dict[str, int] = {}  # stamp of the newest frame with a statement, by thing
        self._since = 0
        self._looked = -math.inf  # ns until which only the mission's own looks count

    def begin(self, stamp: int) -> None:
        """Ignore frames from before `stamp` (ns) from now on.

        Memory may be newer than those frames, or their clock may be another one.
        """
        self._since = stamp
        self._newest.clear()
        self._told = min(self._told, stamp)  # a clock that was set back would block all records
        if self._looked < math.inf:
            self._looked = -math.inf

    def follow_mission(self, running: bool, stamp: int) -> None:
        """Note that a mission runs, or ended at `stamp` (ns).

        Of frames until its end, no single answer states a fact: the mission compares answers, and
        writes those that it believes.
        """
        if running or self._looked == math.inf:
            self._looked = math.inf if running else stamp

    def tell(self, instruction: str, stamp: int) -> list[Draft]:
        """Note the instruction in force since `stamp` (ns of the ROS clock).

        Returns the record of the instruction before it, if that was not finished.
        """
        instruction = instruction.strip()
        if not instruction or instruction == self._instruction:
            return []
        over = []
        if self._instruction and not self._done:
            over = self._record(self._domain.record(self._instruction, False, ()))
        self._instruction, self._told, self._done, self._number = instruction, stamp, False, 0
        return over

    def hear(self, query: str, answer: str, stamp: int) -> list[Draft]:
        """Return what a complete answer about the frame of `stamp` (ns) states.

        A frame from before the instruction states nothing about its task, and an older frame
        nothing about a thing that a newer one has spoken of.
        """
        if stamp < self._since:
            return []
        drafts = self._learn(query.strip(), answer.strip(), stamp)
        return [draft for draft in drafts if self._is_news(draft, stamp)]

    def _is_news(self, draft: Draft, stamp: int) -> bool:
        id, kind, _ = draft
        if kind != 'task' and stamp <= self._looked:
            return False
        if stamp < self._newest.get(id, stamp):
            return False
        self._newest[id] = stamp
        return True

    def _learn(self, query: str, answer: str, stamp: int) -> list[Draft]:
        if found := self._domain.facts_of_answer(query, answer):
            return found
        if not self._instruction or stamp < self._told + HEARD:
            return []
        if not self._done and self._domain.says_done(query, answer):
            self._done = True
            return self._record(self._domain.record(self._instruction, True, ()))
        return self._domain.facts_of_narration(query, answer) if self._done else []

    def conclude(self, text: str) -> list[Draft]:
        """Return the record `text` of a finished task, and the facts that follow from it.

        It replaces the record of the instruction in force, if it is about that instruction.
        """
        own = self._instruction and f'{text},'.startswith(f'{self._instruction},')
        drafts = self._record(text, self._number if own else 0)
        if own:
            self._done = True
        return drafts + (self._domain.facts_of_record(drafts[0]) if drafts else [])

    def _record(self, text: str, number: int = 0) -> list[Draft]:
        """number: of the record that is overwritten; 0 for a new one."""
        if not self._tasks:
            return []
        if not number:
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
