"""What is worth remembering of what the suite itself says and is told.

Knows the words of instructions and of language's answers. Does not know topics, or memory: it
gives out segments as (id, kind, text). It believes what language says of finished frames and
nothing else; what nobody is asked, it does not know.

- The answer to a question about the robot: `robot: holds the red cube`.
- What language narrates when a task is done, for it says then how things are: `red cube: in the
  blue bin`.
- Tasks, by number: `task 3: put the red cube into the blue bin`, written when language says that
  it is done, or that it was not when another instruction comes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from embodied_kv.sim.expert import Phase
from embodied_kv.sim.language import NARRATE, SUBTASK, SUBTASKS

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
        self._holds = ''

    def tell(self, instruction: str, stamp: int) -> list[Draft]:
        """Another instruction is in force, since ns of the ROS clock."""
        instruction = instruction.strip()
        if not instruction or instruction == self._instruction:
            return []
        over = []
        if self._instruction and not self._done:
            over = self._record(f'{self._instruction}, not finished')
        self._instruction, self._told, self._done = instruction, stamp, False
        return over

    def hear(self, query: str, answer: str, stamp: int) -> list[Draft]:
        """What language said to a prompt, to its end. stamp: ns, of the frame that it looked at.

        Of frames from before an instruction nothing is learnt of its task.
        """
        query, answer = query.strip(), answer.strip()
        if query == self._question and answer:
            return self._hold(answer)
        if not self._instruction or stamp < self._told + HEARD:
            return []
        if query == SUBTASK and answer == DONE and not self._done:
            self._done = True
            return self._record(self._instruction)
        if query == NARRATE and self._done:
            return self._see(answer)
        return []

    def _hold(self, answer: str) -> list[Draft]:
        if answer == self._holds:
            return []
        self._holds = answer
        return [(ROBOT, 'agent', f'{ROBOT}: holds {answer}')]

    def _see(self, answer: str) -> list[Draft]:
        if match := LIES.fullmatch(answer):
            return [(match[1], 'object', f'{match[1]}: {match[2]}')]
        if match := HOLDS.fullmatch(answer):
            return [(match[1], 'object', f'{match[1]}: held by the {ROBOT}')]
        return []

    def _record(self, text: str) -> list[Draft]:
        if not self._tasks:
            return []
        if len(self._numbers) < self._tasks:
            number = max(self._numbers, default=0) + 1
        else:
            number = self._numbers.pop(0)
        self._numbers.append(number)
        return [(f'task {number}', 'task', f'task {number}: {text}')]
