"""A mission without a planner: its sentences are its steps, in order."""

from __future__ import annotations

import re

from embodied_kv.model.mission_words import PlannerAnswer
from embodied_kv.planning.mission import MissionState

TRIES = 3  # of a step that fails
BETWEEN = re.compile(r'\s*(?:[;\n]+|[.!]+(?=\s|$)|,?\s*\b(?:and\s+)?then\b,?)\s*', re.IGNORECASE)
FIRST = re.compile(r'(?:first|next|finally),?\s+', re.IGNORECASE)


def split_steps(words: str) -> tuple[str, ...]:
    """Return the instructions of a mission, split at `then`, semicolons, lines and full stops."""
    parts = (FIRST.sub('', part.strip(' ,'), count=1) for part in BETWEEN.split(words))
    return tuple(part for part in parts if part)


def next_step(state: MissionState) -> PlannerAnswer:
    """Return what a mission goes on with: each part until it is done, at most `TRIES` times."""
    parts = split_steps(state.words)
    if state.part > len(parts):
        return PlannerAnswer('over')
    if state.tried and state.tried[-1].done:
        return PlannerAnswer('done')
    if len(state.tried) >= TRIES:
        return PlannerAnswer('give up', f'{parts[state.part - 1]}: not done in {TRIES} tries')
    return PlannerAnswer('step', parts[state.part - 1])
