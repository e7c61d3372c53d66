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
class SceneFacts:
    """The result of a scene query."""

    drafts: tuple[Draft, ...]  # memory segments to be written
    gone: tuple[str, ...] = ()  # names of removed objects, whose segments are removed


# Yields questions about the newest camera frame, receives their answers, and returns `SceneFacts`.
SceneQuery = Generator[list[str], list[str], SceneFacts]


class Language(Protocol):
    """The section `language` of a contract, as far as a domain needs it."""

    success: str  # a question that the policy answers with yes once a task is done
    prompts: tuple[str, ...]  # asked repeatedly while the policy acts
    domain: str


class Domain(Protocol):
    """The meaning of the sentences of one robot.

    In all methods, `known` has the segments of memory, oldest change first. An entry point is
    called with the section `language` of the contract. A domain may inherit the defaults of the
    methods that have one.
    """

    def look(self, known: Sequence[Draft], instruction: str = '', mission: str = '') -> SceneQuery:
        """Return a query of the whole scene, or of what an instruction was about.

        mission: the words of the client of the mission, with the names of objects in the scene.
        """

    def refusal(self, instruction: str, known: Sequence[Draft]) -> str:
        """Return why an instruction of the planner may not be sent to the policy; '' if it may."""
        return ''

    def confirms(self, instruction: str, known: Sequence[Draft]) -> bool:
        """Return whether memory agrees that an instruction is done, or cannot tell."""
        return True

    def moves(self, known: Sequence[Draft]) -> tuple[int, ...]:
        """Return the numbers of the task records that moved an object, newest first."""
        return ()

    def record(self, instruction: str, done: bool, known: Sequence[Draft]) -> str:
        """Return the text of the task record of a step; `known` is from before the step."""
        return instruction if done else f'{instruction}, not finished'

    def facts_of_step(self, instruction: str) -> list[Draft]:
        """Return facts that hold once an instruction is done, and that no question covers."""
        return []

    def facts_of_answer(self, question: str, answer: str) -> list[Draft]:
        """Return the facts that an answer states; none if it states none."""

    def facts_of_narration(self, prompt: str, answer: str) -> list[Draft]:
        """Return facts that the policy states without a question after a task is done."""
        return []

    def facts_of_record(self, record: Draft) -> list[Draft]:
        """Return facts that follow from a task record that a client has written."""
        return []

    def says_done(self, prompt: str, answer: str) -> bool:
        """Return whether the policy states that the instruction in force is done."""

    def names(self, segment: Draft) -> set[str]:
        """Return the names of the objects that a segment of memory is about."""


OBJECT = 'object'  # the kind of a segment about one object, whose id is the name of the object
LONGEST_NAME = 40  # letters
LONGEST_ANSWER = 1000  # letters
MOST_ASKED = 8  # objects in a query of the whole scene
# Words that end the name of an object within an instruction. A number or punctuation, except a
# decimal point, ends it too.
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


class OpenDomain(Domain):
    """A domain that accepts any instruction and stores facts as text.

    The success question of the contract decides what is done. After a step the domain queries
    where the objects of the instruction are. The answer to any question becomes a segment, except
    `yes`, `no`, answers that state ignorance, and answers to the success question and the prompts
    of the contract.
    """

    def __init__(self, language: Language) -> None:
        self._success = language.success.strip()
        self._prompts = {self._success, *(prompt.strip() for prompt in language.prompts)}

    def look(self, known: Sequence[Draft], instruction: str = '', mission: str = '') -> SceneQuery:
        """Query where the objects of the instruction are.

        Without one, those of the mission, and of the others those that changed last.
        """
        objects = [id for id, kind, _ in known if kind == OBJECT and len(id) <= LONGEST_NAME]
        ids = {id.casefold(): id for id in objects}  # as memory spells them
        names = things(instruction)
        if not instruction:
            names = [ids.get(name.casefold(), name) for name in things(mission)[:MOST_ASKED]]
            others = [id for id in ids.values() if id not in names]
            names += others[max(0, len(others) + len(names) - MOST_ASKED) :]
        questions = [f'Where is the {name}?' for name in names]
        answers = (yield questions) if questions else []
        drafts = []
        for question, answer in zip(questions, answers, strict=True):
            for id, kind, text in self.facts_of_answer(question, answer):
                drafts.append((ids.get(id, id), kind, text))
        return SceneFacts(tuple(drafts))

    def facts_of_answer(self, question: str, answer: str) -> list[Draft]:
        """Return where an object is, or the question with its answer."""
        question, answer = _printable(question), _printable(answer).rstrip('.')
        answer = answer.replace('\u2019', "'")[:LONGEST_ANSWER]
        if question in self._prompts or not question.endswith('?'):
            return []
        if is_yes(answer) or is_no(answer) or not answer or IGNORANCE.search(answer):
            return []
        if match := WHERE.fullmatch(question):
            return [(match['name'].casefold(), OBJECT, f'{match["name"]}: {answer}')]
        return [(question[:MAX_ID], 'note', f'{question} {answer}')]

    def says_done(self, prompt: str, answer: str) -> bool:
        """Return whether the answer to the success question is yes."""
        return bool(self._success) and prompt.strip() == self._success and is_yes(answer)

    def names(self, segment: Draft) -> set[str]:
        """Return the name of the object that a segment is about."""
        id, kind, _ = segment
        return {id} if kind == OBJECT else set()


def _printable(words: str) -> str:
    """Return words with one space for each run of spaces and unprintable characters."""
    return ' '.join(''.join(c if c.isprintable() else ' ' for c in words).split())


def is_yes(answer: str) -> bool:
    """Return whether an answer begins with yes, as `execute_instruction` reads it."""
    return answer.strip().lower().startswith('yes')


def is_no(answer: str) -> bool:
    """Return whether an answer is no, with or without a reason after a comma."""
    return re.match(r'no(?:\W|$)(?! idea)', answer.strip(), re.IGNORECASE) is not None


def things(instruction: str) -> list[str]:
    """Return the names of the objects in an instruction, each once and without its article."""
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
    except Exception as error:  # third-party code
        raise ValueError(
            f'language.domain {name} must be loadable (got {reason(error)}); see '
            f'{declared[name].value}'
        ) from error
