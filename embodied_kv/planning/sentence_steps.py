"""Missions without a planner: the sentences of the mission are its steps, in order."""

from __future__ import annotations

import re

from embodied_kv.model.planner_prompts import PlannerAnswer
from embodied_kv.planning.mission import MissionState

TRIES = 3  # of a failing step
# Between sentences: a semicolon, a line break, or a full stop before a space and a capital letter,
# except after a title.
SENTENCES = re.compile(
    r'[;\n]|[.!](?=\s[A-Z])(?<!\bDr\.)(?<!\bMr\.)(?<!\bMs\.)(?<!\bMrs\.)(?<!\bNo\.)(?<!\bSt\.)'
)
THEN = re.compile(r',? and then\b,?|, then\b,?|\bthen,', re.IGNORECASE)
# A sentence with a condition is one instruction: its second half alone would be unconditional.
CONDITION = re.compile(
    r'(?:if|when|whenever|unless|once|until|while|after|before)\b', re.IGNORECASE
)
BLANKS = re.compile(r'[^\S\n]+')
# What begins a step without being part of it: a list marker, `First,` or `then`.
MARKER = re.compile(
    r'(?:[-*•]|\d{1,3}[.)])\s+|(?:first|next|finally),\s*|then\b,?\s*', re.IGNORECASE
)


def split_steps(words: str) -> tuple[str, ...]:
    """Return the instructions of a mission in order; none if it has no letters."""
    sentences = map(_plain, SENTENCES.split(BLANKS.sub(' ', words)))
    parts = []
    for sentence in sentences:
        parts += [sentence] if CONDITION.match(sentence) else map(_plain, THEN.split(sentence))
    return tuple(part for part in parts if any(letter.isalpha() for letter in part))


def _plain(part: str) -> str:
    """Return a part without its list marker and the punctuation around it."""
    part = part.strip(' ,.!')
    while match := MARKER.match(part):
        part = part[match.end() :]
    return part


def next_step(state: MissionState) -> PlannerAnswer:
    """Return the next step: each sentence until it is done, at most `TRIES` times."""
    parts = split_steps(state.words)
    if not parts:
        return PlannerAnswer('impossible', 'the mission has no instruction')
    if state.part > len(parts):
        return PlannerAnswer('over')
    if state.tried and state.tried[-1].done:
        return PlannerAnswer('done')
    if len(state.tried) >= TRIES:
        return PlannerAnswer('give up', f'{parts[state.part - 1]}: not done in {TRIES} tries')
    return PlannerAnswer('step', parts[state.part - 1])
