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

from embodied_kv.memory.segment import MAX_ID
from embodied_kv.text import reason

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


class Language(Protocol):
    """The section `language` of a contract, as far as a domain needs it."""

    success: str  # a question that the policy answers with yes once a task is done
    prompts: Sequence[str]  # asked again and again while the policy acts
    domain: str


class Domain(Protocol):
    """The meaning of the sentences of one robot.

    In all methods, `known` is what memory holds: its segments, oldest change first. An entry point
    is called with the section `language` of the contract.
    """

    def look(self, known: Sequence[Draft], instruction: str = '') -> Look:
        """Return a look at the whole scene, or at what an instruction was about."""

    def refusal(self, instruction: str, known: Sequence[Draft]) -> str:
        """Return why an instruction of the planner may not be sent to the policy; '' if it may."""

    def moves(self, known: Sequence[Draft]) -> tuple[int, ...]:
        """Return the numbers of the task records that moved a thing, newest first."""

    def record(self, instruction: str, done: bool, known: Sequence[Draft]) -> str:
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

    def names(self, segment: Draft) -> set[str]:
        """Return the names of the things that a segment of memory is about."""


OBJECT = 'object'  # the kind of a segment about one thing, whose id is the name of the thing
LONGEST_NAME = 40  # letters
LONGEST_ANSWER = 1000  # letters
MOST_ASKED = 8  # things that a look at the whole scene asks for: those that changed last
# Words that end the name of a thing within an instruction. A number ends it too, and so does
# punctuation, but for the point of a decimal.
END = (
    r'(?=\s(?:in|into|on|onto|off|out|from|to|towards?|next|near|around|beside|behind|under|over|'
    r'above|below|at|with|and|or|by|inside|between|through|across|until|for|up|down|away|back|open|'
    r'closed|again|once|twice|carefully|gently|slowly|quickly|completely|fully|firmly|tightly|'
    r'clockwise|counterclockwise|then|while|if|when|so|that|which)\b|\s\d|[;!?]|[.,](?!\d)|$)'
)
NAME = rf'(?P<name>\S.{{0,{LONGEST_NAME - 1}}}?)'
THING = re.compile(rf'\b(?:the|my|a|an) {NAME}{END}', re.IGNORECASE)
WHERE = re.compile(rf'where (?:is|are) (?:the |my |an? )?{NAME}\s?\?', re.IGNORECASE)
IGNORANCE = re.compile(
    r"\b(?:do not|don't|does not|doesn't|can ?not|can't|cannot|could not|couldn't|not sure|unsure|"
    r'no idea|unknown|not visible|not seen|not there|nowhere|there is no|there are no)\b|^none$',
    re.IGNORECASE,
)


class OpenDomain:
    """Accepts any instruction and stores facts as text.

    The policy decides what it can do; the contract's success question decides what is done. After
    a step the policy is asked where the things of the instruction are. The answer to any question
    becomes a segment, except `yes`, `no`, answers that state ignorance, and answers to the success
    question and to the prompts of the contract.

    Args:
        language: The section `language` of the contract.
    """

    def __init__(self, language: Language) -> None:
        self._success = language.success.strip()
        self._prompts = {self._success, *(prompt.strip() for prompt in language.prompts)}

    def look(self, known: Sequence[Draft], instruction: str = '') -> Look:
        """Ask where the things of the instruction are, or those that changed last in memory."""
        objects = [id for id, kind, _ in known if kind == OBJECT and len(id) <= LONGEST_NAME]
        ids = {id.casefold(): id for id in objects}  # as memory spells them
        names = things(instruction) if instruction else list(ids.values())[-MOST_ASKED:]
        questions = [f'Where is the {name}?' for name in names]
        answers = (yield questions) if questions else []
        drafts = []
        for question, answer in zip(questions, answers, strict=True):
            for id, kind, text in self.facts_of_answer(question, answer):
                drafts.append((ids.get(id, id), kind, text))
        return Seen(tuple(drafts))

    def refusal(self, instruction: str, known: Sequence[Draft]) -> str:
        """Return ''."""
        return ''

    def moves(self, known: Sequence[Draft]) -> tuple[int, ...]:
        """Return nothing: the domain does not know which instruction moves a thing."""
        return ()

    def record(self, instruction: str, done: bool, known: Sequence[Draft]) -> str:
        """Return the instruction, marked if it was not finished."""
        return instruction if done else f'{instruction}, not finished'

    def facts_of_step(self, instruction: str) -> list[Draft]:
        """Return nothing."""
        return []

    def facts_of_answer(self, question: str, answer: str) -> list[Draft]:
        """Return where a thing is, or the question with its answer."""
        question, answer = _printable(question), _printable(answer).rstrip('.')
        answer = answer.replace('\u2019', "'")[:LONGEST_ANSWER]
        if question in self._prompts or not question.endswith('?'):
            return []
        if is_yes(answer) or is_no(answer) or not answer or IGNORANCE.search(answer):
            return []
        if match := WHERE.fullmatch(question):
            return [(match['name'].casefold(), OBJECT, f'{match["name"]}: {answer}')]
        return [(question[:MAX_ID], 'note', f'{question} {answer}')]

    def facts_of_narration(self, prompt: str, answer: str) -> list[Draft]:
        """Return nothing."""
        return []

    def facts_of_record(self, record: Draft) -> list[Draft]:
        """Return nothing."""
        return []

    def says_done(self, prompt: str, answer: str) -> bool:
        """Return whether the answer to the success question is yes."""
        return bool(self._success) and prompt.strip() == self._success and is_yes(answer)

    def names(self, segment: Draft) -> set[str]:
        """Return the name of the thing that a segment is about."""
        id, kind, _ = segment
        return {id} if kind == OBJECT else set()


def _printable(words: str) -> str:
    """Return words with one blank in place of blanks and of characters that cannot be printed."""
    return ' '.join(''.join(c if c.isprintable() else ' ' for c in words).split())


def is_yes(answer: str) -> bool:
    """Return whether an answer begins with yes, as `execute_instruction` reads it."""
    return answer.strip().lower().startswith('yes')


def is_no(answer: str) -> bool:
    """Return whether an answer is no, with or without a reason after a comma."""
    return re.match(r'no(?:\W|$)(?! idea)', answer.strip(), re.IGNORECASE) is not None


def things(instruction: str) -> list[str]:
    """Return the names of the things in an instruction, each once and without its article."""
    found = {match['name'].casefold(): match['name'] for match in THING.finditer(instruction)}
    return list(found.values())


def load_domain(language: Language) -> Domain:
    """Return the domain that the section `language` of a contract names.

    Raises:
        ValueError: No installed package declares it, or it cannot be loaded.
    """
    name = language.domain
    if name in ('', OPEN):
        return OpenDomain(language)
    declared = {point.name: point for point in entry_points(group=GROUP)}
    if name not in declared:
        known = ', '.join(sorted({OPEN, *declared}))
        raise ValueError(
            f'language.domain must be one of {known} (got {name}); install the package that '
            f'declares it as an entry point of {GROUP}'
        )
    try:
        return declared[name].load()(language)
    except Exception as error:  # whatever its package does
        raise ValueError(
            f'language.domain {name} must be loadable (got {reason(error)}); see '
            f'{declared[name].value}'
        ) from error
