"""The prompts of the planner: memory segments, questions, missions, and the parsed answers.

Each piece of a prompt is tokenised separately, so that the tokens of a segment do not depend on
the text around it. For a mission, a prompt requests one step of one part. The caller counts the
parts: the answer `done` ends one, and `over` means that all parts are done.

    mission: put everything blue into the bin, then say where the red cube is; part 1;
    last moved 12, 10, 9; done: put the blue cube into the red bin
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HEAD = 'Memory:'  # before the first segment
# Before HEAD in the prompts of a planner that was trained for dialogues, not for missions.
INTRODUCTION = """\
You plan for a robot. Below are the facts that it remembers, and a question (Q).
If the question begins with "mission:", it names the mission, the number of the part of the \
mission that is asked for, and the steps of this part that were done or failed. Answer with one \
line, which is one of:
- the next step, as a short instruction to the robot
- say: and a sentence to report
- done, if this part is complete
- over, if the mission has no such part
- impossible: and the reason
- give up: and the reason
Answer any other question in a few words."""
LAST = 3  # moves that a question names, newest first
PICK = 'pick up '  # start of a step that only prepares another one


@dataclass(frozen=True)
class Tried:
    """A step of the present part, in the words of the planner, and whether it succeeded."""

    step: str
    done: bool

    @property
    def counts(self) -> bool:
        return self.done and not self.step.startswith(PICK)


@dataclass(frozen=True)
class PlannerAnswer:
    """A parsed answer.

    kind: 'step', 'say', 'done', 'over', 'impossible' or 'give up'. words: the instruction, the
    report, or the reason; '' for 'done' and 'over'.
    """

    kind: str
    words: str = ''


@dataclass(frozen=True)
class PromptFrame:
    """The tokens around memory and question.

    head: before the first segment. tail: behind a question, up to the answer; () if the question
    ends with the start of the answer. stops: tokens of which each ends an answer.
    """

    head: tuple[int, ...]
    tail: tuple[int, ...]
    stops: frozenset[int]


def segment_words(text: str) -> str:
    """Return one memory segment as it stands in a prompt."""
    return f'\n{text}'


def question_words(question: str, is_dialogue: bool = False) -> str:
    """Return the question at the end of a prompt. is_dialogue: the answer is another turn."""
    return f'\nQ: {question}' if is_dialogue else f'\nQ: {question}\nA:'


def answer_words(answer: str) -> str:
    """Return an answer as it stands before <eos>."""
    return f' {answer}'


def mission_question(
    mission: str, part: int, moves: Sequence[int] = (), tried: Sequence[Tried] = ()
) -> str:
    """Return the question for the next step.

    part: number of the present part, from 1. moves: records that moved a thing before this part
    began, newest first. tried: steps of this part in order; failures before the last success are
    left out. Raises ValueError for a mission without words.
    """
    if not (words := plain(mission)):
        raise ValueError("mission must have words (got ''); send what the robot should do")
    counting = [i for i, one in enumerate(tried) if one.counts]
    since = counting[-1] + 1 if counting else 0
    pieces = [f'mission: {words}', f'part {part}']
    if moves:
        pieces.append(f'last moved {", ".join(map(str, moves[:LAST]))}')
    for one in (*(tried[i] for i in counting), *tried[since:]):
        step = 'say' if one.step.startswith('say: ') else one.step
        pieces.append(f'{"done" if one.done else "failed"}: {step}')
    return '; '.join(pieces)


def plain(mission: str) -> str:
    """Return a mission in lower case, on one line, without final punctuation.

    A semicolon becomes a comma, because it ends the mission in a question.
    """
    return ' '.join(mission.lower().replace(';', ',').split()).strip('.,! ')


def read_answer(text: str) -> PlannerAnswer:
    """Return the parsed answer of the planner, its first line. Raises ValueError without text.

    Dialogue models begin their answers with a capital letter, or end them with a full stop.
    """
    if not (text := text.strip()):
        raise ValueError('the planner returned no text')
    text = text.splitlines()[0].strip()
    head, _, words = text.partition(':')
    if head.casefold() in ('say', 'impossible', 'give up') and words.strip():
        return PlannerAnswer(head.casefold(), words.strip())
    alone = text.casefold().rstrip('.! ')
    return PlannerAnswer(alone) if alone in ('done', 'over') else PlannerAnswer('step', text)
