"""What is worth remembering of what the suite itself says and is told.

Knows the words of instructions and of language's answers. Does not know topics, or memory: it
gives out segments as (id, kind, text). It believes what language says of finished frames and
nothing else; what nobody is asked, it does not know.

- The answer to a question about the robot: `robot: holds the red cube`.
- Answers to where a thing is, or what a place holds, whoever asked (`eyes.learnt`).
- What language narrates when a task is done, for it says then how things are: `red cube: in the
  blue bin`.
- Tasks, by number: `task 3: put the red cube into the blue bin`, written when language says that
  it is done, or that it was not when another instruction comes. Who gave the instruction may
  conclude it, and knows more: `task 3: put the red cube into the blue bin, from the table`, and
  `last move of the red cube: task 3`.

Answers come in any order, for a stream that a capsule brings back speaks of an old frame: of a
thing counts the newest frame. While a mission runs, what it believes of its own looks counts, and
no single answer does (`look_for_itself`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from embodied_kv.demo.sim.expert import Phase
from embodied_kv.demo.sim.eyes import learnt
from embodied_kv.demo.sim.language import HELD, NARRATE, SUBTASK, SUBTASKS
from embodied_kv.demo.sim.mission_memory import RECORD, parse_task
from embodied_kv.demo.sim.mission_table import MOVES

Draft = tuple[str, str, str]

ROBOT = 'robot'
DONE = SUBTASKS[Phase.HOLD]
TASK = re.compile(r'task (\d{1,9})')
LIES = re.compile(r'the (.+) is ((?:in|on|next to) the .+)')
HOLDS = re.compile(r'I hold the (.+)')
HEARD = 150_000_000  # ns after which an instruction is surely in the robot's frames


class NoteTaker:
    """question: whose answers say what the robot holds. tasks: records kept, the oldest go.

    known: the (id, step) of the task records that are there. Either may be off: '' or 0.
    """

    def __init__(self, question: str, tasks: int, known: Iterable[tuple[str, int]] = ()) -> None:
        self._question, self._tasks = question, tasks
        found = ((step, TASK.fullmatch(id)) for id, step in known)
        records = sorted((step, int(match[1])) for step, match in found if match)
        self._numbers = [number for _, number in records]  # the oldest first
        self._instruction, self._told, self._done = '', 0, False
        self._number = 0  # of the record of the instruction in force, 0 before there is one
        self._newest: dict[str, int] = {}  # stamp of the newest frame of which a thing was said
        self._since = 0
        self._looked = -math.inf  # until then, ns, a mission looked for itself

    def begin(self, stamp: int) -> None:
        """Of frames from before, ns, nothing is learnt; nor is it known what came later.

        Memory may be newer than they are, or their clock another one.
        """
        self._since = stamp
        self._newest.clear()
        self._told = min(self._told, stamp)  # else a clock that was set back teaches no task
        if self._looked < math.inf:
            self._looked = -math.inf

    def look_for_itself(self, running: bool, stamp: int) -> None:
        """A mission runs, or ended at ns. Of frames until its end no answer tells of a thing.

        It weighs its answers against one another, and says what it believes: one alone would be
        remembered that it did not believe.
        """
        if running or self._looked == math.inf:
            self._looked = math.inf if running else stamp

    def tell(self, instruction: str, stamp: int) -> list[Draft]:
        """Another instruction is in force, since ns of the ROS clock."""
        instruction = instruction.strip()
        if not instruction or instruction == self._instruction:
            return []
        over = []
        if self._instruction and not self._done:
            over = self._record(f'{self._instruction}, not finished')
        self._instruction, self._told, self._done, self._number = instruction, stamp, False, 0
        return over

    def hear(self, query: str, answer: str, stamp: int) -> list[Draft]:
        """What language said to a prompt, to its end. stamp: ns, of the frame that it looked at.

        Of frames from before an instruction nothing is learnt of its task; of a thing nothing, if
        a newer frame has told of it.
        """
        if stamp < self._since:
            return []
        drafts = self._learn(query, answer, stamp)
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
        query, answer = query.strip(), answer.strip()
        if query == self._question and answer:
            return [(ROBOT, 'agent', f'{ROBOT}: holds {answer}')]
        if query != HELD and (found := learnt(query, answer)):
            return found
        if not self._instruction or stamp < self._told + HEARD:
            return []
        if query == SUBTASK and answer == DONE and not self._done:
            self._done = True
            return self._record(self._instruction)
        if query == NARRATE and self._done:
            return self._see(answer)
        return []

    def _see(self, answer: str) -> list[Draft]:
        if match := LIES.fullmatch(answer):
            return [(match[1], 'object', f'{match[1]}: {match[2]}')]
        if match := HOLDS.fullmatch(answer):
            return [(match[1], 'object', f'{match[1]}: held by the {ROBOT}')]
        return []

    def conclude(self, text: str) -> list[Draft]:
        """A task is over, and its record says `text`, in place of what was written of it."""
        instruction = next(iter(text.split(',')), '').strip()
        own = instruction == self._instruction
        drafts = self._record(text, self._number if own else 0)
        if own:
            self._done = True
        match = RECORD.fullmatch(drafts[0][2]) if drafts else None
        task = parse_task(instruction)
        if match and task and match[3] and task.family in MOVES:
            thing = task.target
            words = f'last move of the {thing}: task {match[1]}'
            drafts.append((f'last {thing}', 'note', words))
        return drafts

    def _record(self, text: str, number: int = 0) -> list[Draft]:
        """number: to be written anew; 0 for a new one."""
        if not self._tasks:
            return []
        if not number:
            number = self._next_number()
            self._numbers.append(number)
        self._number = number
        return [(f'task {number}', 'task', f'task {number}: {text}')]

    def _next_number(self) -> int:
        """The next free one behind the newest, round and round; the oldest where none is free."""
        if len(self._numbers) >= self._tasks:
            return self._numbers.pop(0)
        newest = self._numbers[-1] if self._numbers else 0
        numbers = ((newest + i) % self._tasks + 1 for i in range(self._tasks))
        return next(number for number in numbers if number not in self._numbers)
