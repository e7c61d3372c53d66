"""How a mission is put to the planner as a question, and how its answer is read.

The planner is asked for one step of one part of a mission at a time. Whoever asks counts parts:
`done` ends one, and `over` is the answer where there is no further part. Knows sentences. Does not
know robots, tasks or tokens.

    mission: put everything blue into the bin, then say where the red cube is; part 1;
    last moved 12, 10, 9; done: put the blue cube into the red bin
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ANSWERS = ('step', 'say', 'done', 'over', 'impossible', 'give up')
LAST = 3  # moves that are named, newest first
PICK = 'pick up '  # how a step begins that only prepares another


@dataclass(frozen=True)
class Tried:
    """A step of the part at hand, as the planner said it, and whether it was done."""

    step: str
    done: bool

    @property
    def counts(self) -> bool:
        return self.done and not self.step.startswith(PICK)


@dataclass(frozen=True)
class PlannerAnswer:
    """kind: one of ANSWERS. words: the instruction, what is said, or why not; '' for an end."""

    kind: str
    words: str = ''


def mission_question(
    mission: str, part: int, moves: Sequence[int] = (), tried: Sequence[Tried] = ()
) -> str:
    """The question for the next step.

    part: from 1. moves: numbers of the task records that moved a thing before this part began, the
    newest first. tried: in this part, in order; failures before the last success are not told.
    Raises ValueError where there is no mission.
    """
    if not (words := plain(mission)):
        raise ValueError('there is no mission: say what is to be done')
    counting = [i for i, one in enumerate(tried) if one.counts]
    since = counting[-1] + 1 if counting else 0
    told = [tried[i] for i in counting] + list(tried[since:])
    pieces = [f'mission: {words}', f'part {part}']
    if moves:
        pieces.append(f'last moved {", ".join(map(str, moves[:LAST]))}')
    for one in told:
        step = 'say' if one.step.startswith('say: ') else one.step
        pieces.append(f'{"done" if one.done else "failed"}: {step}')
    return '; '.join(pieces)


def plain(mission: str) -> str:
    """A mission as it stands in a question: in small letters, in one line, without its end.

    A semicolon becomes a comma, for it ends the mission in a question.
    """
    return ' '.join(mission.lower().replace(';', ',').split()).strip('.,! ')


def read_answer(text: str) -> PlannerAnswer:
    """What the planner said. Raises ValueError for no words at all."""
    text = text.strip()
    if not text:
        raise ValueError('the planner returned no text')
    head, colon, words = text.partition(': ')
    if colon and head in ('say', 'impossible', 'give up'):
        return PlannerAnswer(head, words)
    if text in ('done', 'over'):
        return PlannerAnswer(text)
    return PlannerAnswer('step', text)
