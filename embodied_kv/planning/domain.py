"""The vocabulary of a robot: what its instructions, its questions and their answers mean.

Missions and memory handle sentences. A `Domain` decides which instruction may be sent, which
questions to ask about a camera frame, and which facts follow from an answer. The contract names
the domain (`language: {domain: NAME}`); the default is `OpenDomain`, which accepts any words.
Another Python package can declare a domain as an entry point of the group `embodied_kv.domains`.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol

GROUP, OPEN = 'embodied_kv.domains', 'open'
Draft = tuple[str, str, str]  # id, kind and text of a memory segment; id '' for a new task record


@dataclass(frozen=True)
class Seen:
    """What a look at the scene yields.

    Args:
        drafts: Memory segments to be written.
        gone: Names of things that are not there any more; segments about them are removed.
    """

    drafts: tuple[Draft, ...]
    gone: tuple[str, ...] = ()


# Yields questions about the newest camera frame, receives their answers, and returns `Seen`.
Look = Generator[list[str], list[str], Seen]


class Domain(Protocol):
    """The meaning of the sentences of one robot.

    In all methods, `known` is what memory holds: the texts of its segments, oldest change first.
    An entry point is called with the contract's success question ('' if there is none).
    """

    def look(self, known: Sequence[str], instruction: str = '') -> Look:
        """Return a look at the whole scene, or at what an instruction was about."""

    def refusal(self, instruction: str, known: Sequence[str]) -> str:
        """Return why an instruction of the planner may not be sent to the policy; '' if it may."""

    def moves(self, known: Sequence[str]) -> tuple[int, ...]:
        """Return the numbers of the task records that moved a thing, newest first."""

    def record(self, instruction: str, done: bool, known: Sequence[str]) -> str:
        """Return the text of the task record of a step; `known` is from before the step."""

    def facts_of_step(self, instruction: str) -> list[Draft]:
        """Return the facts that hold once an instruction is done and that no question asks for."""

    def facts_of_answer(self, question: str, answer: str) -> list[Draft]:
        """Return the facts that an answer states; none if it states none."""

    def facts_of_narration(self, prompt: str, answer: str) -> list[Draft]:
        """Return the facts that the policy states unasked after a task is done."""

    def facts_of_record(self, record: Draft) -> list[Draft]:
        """Return the facts that follow from a task record that a client has written."""

    def says_done(self, prompt: str, answer: str) -> bool:
        """Return whether the policy states that the instruction in force is done."""

    def names(self, text: str) -> set[str]:
        """Return the names of the things that a text of memory is about."""


THING = r'(?:the|my|a|an) (?P<{}>.+?)'
# Words that end the name of a thing within an instruction.
END = (
    r'(?= (?:in|into|on|onto|off|out|from|to|towards?|next|near|beside|behind|under|over|above|'
    r'below|at|with|and|by|inside|between|until|for|up|down|away|back|open|closed)\b|[,.;!?]|$)'
)
NAMED = re.compile(r'\b' + THING.format('name') + END, re.IGNORECASE)
WHERE = re.compile(r'where (?:is|are) ' + THING.format('name') + r'\s*\?', re.IGNORECASE)
FACT = re.compile(r'([^:]+): .+')
YES_NO = {'', 'yes', 'no'}
IGNORANCE = re.compile(
    r"(?:i (?:do not|don't|cannot|can't)|unknown|not (?:visible|sure|seen))\b", re.IGNORECASE
)


class OpenDomain:
    """Accepts any instruction and stores facts as text.

    The policy decides what it can do; the contract's success question decides what is done. After
    a step the policy is asked where the things of the instruction are. The answer to any question
    becomes a segment, but for `yes`, `no` and answers that state ignorance.

    Args:
        success_question: A question that the policy answers with `yes` once a task is done.
    """

    def __init__(self, success_question: str = '') -> None:
        self._success_question = success_question

    def look(self, known: Sequence[str], instruction: str = '') -> Look:
        """Ask where the things of the instruction are, or those that memory knows."""
        if instruction:
            names = things(instruction)
        else:
            names = [match[1] for text in known if (match := FACT.fullmatch(text))]
            names = [name for name in names if not name.startswith(('task ', 'last '))]
        questions = [f'Where is the {name}?' for name in dict.fromkeys(names)]
        answers = (yield questions) if questions else []
        drafts = []
        for question, answer in zip(questions, answers, strict=True):
            drafts += self.facts_of_answer(question, answer)
        return Seen(tuple(drafts))

    def refusal(self, instruction: str, known: Sequence[str]) -> str:
        """Return ''."""
        return ''

    def moves(self, known: Sequence[str]) -> tuple[int, ...]:
        """Return nothing: the domain does not know which instruction moves a thing."""
        return ()

    def record(self, instruction: str, done: bool, known: Sequence[str]) -> str:
        """Return the instruction, marked if it was not finished."""
        return instruction if done else f'{instruction}, not finished'

    def facts_of_step(self, instruction: str) -> list[Draft]:
        """Return nothing."""
        return []

    def facts_of_answer(self, question: str, answer: str) -> list[Draft]:
        """Return where a thing is, or the question with its answer."""
        question, answer = question.strip(), answer.strip().rstrip('.')
        if answer.lower() in YES_NO or IGNORANCE.match(answer) or not question.endswith('?'):
            return []
        if match := WHERE.fullmatch(question):
            return [(match['name'], 'object', f'{match["name"]}: {answer}')]
        return [(question, 'note', f'{question} {answer}')]

    def facts_of_narration(self, prompt: str, answer: str) -> list[Draft]:
        """Return nothing."""
        return []

    def facts_of_record(self, record: Draft) -> list[Draft]:
        """Return nothing."""
        return []

    def says_done(self, prompt: str, answer: str) -> bool:
        """Return whether the answer to the success question is yes."""
        asked = self._success_question
        return bool(asked) and prompt.strip() == asked and answer.strip().lower() == 'yes'

    def names(self, text: str) -> set[str]:
        """Return the name before the colon of a fact."""
        match = FACT.fullmatch(text)
        return {match[1]} if match else set()


def things(instruction: str) -> list[str]:
    """Return the names of the things in an instruction, each a noun phrase without its article."""
    return [match['name'] for match in NAMED.finditer(instruction)]


def load_domain(name: str, success_question: str = '') -> Domain:
    """Return the domain of that name; '' is the open one.

    Raises:
        ValueError: No installed package declares it.
    """
    if name in ('', OPEN):
        return OpenDomain(success_question)
    declared = {point.name: point for point in entry_points(group=GROUP)}
    if name not in declared:
        known = ', '.join(sorted({OPEN, *declared}))
        raise ValueError(
            f'language.domain must be one of {known} (got {name}); install the package that '
            f'declares it as an entry point of {GROUP}'
        )
    return declared[name].load()(success_question)
