"""The story that every way runs through: a household, its updates, and questions in between.

Knows the simulated world. Does not know planners or KV. An update is a step of the world, and the
facts that it changed are written to memory at that step.

Source: KEEP, sections 1 and 6.1: after each action the robot updates its memory and plans.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from benchmarks.memory.household_traces import TraceConfig, draw_trace
from benchmarks.memory.settings import World
from training.planner.household import Fact, Household, draw_household
from training.planner.household_questions import KINDS, Question, answer, draw_question, was

Facts = tuple[Fact, ...]
TRIES = 200  # attempts to draw a question whose truth has changed


@dataclass(frozen=True)
class Moment:
    """Updates, then a question. old: the truth before its last change, None if it never changed.

    known: text of each fact by id when the question is asked; needs: ids of the facts that decide
    it.
    """

    updates: tuple[Facts, ...]
    question: str
    kind: str
    hops: int
    truth: str
    old: str | None
    known: dict[str, str]
    needs: frozenset[str] = frozenset()

    def right(self, said: str) -> bool:
        """Return whether an answer equals the truth exactly."""
        return said == self.truth

    def stale(self, said: str) -> bool:
        """Return whether an answer was right before the last update that mattered."""
        return self.old is not None and said == self.old


@dataclass(frozen=True)
class Story:
    """The facts and questions of a household.

    first: facts known in the beginning. before: updates before the first question.
    """

    first: Facts
    before: tuple[Facts, ...]
    moments: tuple[Moment, ...]


def draw_story(world: World, seed: tuple[int, ...], questions: int) -> Story:
    """Return the story of a seed; a longer story begins like a shorter one."""
    rng = np.random.default_rng((*seed, 0))
    household = draw_household(rng, world.facts)
    likely = TraceConfig(world.objects, world.places, world.cold, world.carry)
    count = world.before + questions * world.between
    states, changes = [household], []
    for update in draw_trace(rng, household, count, likely):
        states.append(update.household)
        changes.append(update.changed)
    return Story(
        tuple(household.facts()),
        tuple(changes[: world.before]),
        tuple(_moments(world, np.random.default_rng((*seed, 1)), states, changes)),
    )


def _moments(
    world: World, rng: np.random.Generator, states: list[Household], changes: list[Facts]
) -> Iterator[Moment]:
    ends = range(world.before + world.between, len(changes) + 1, world.between)
    for end, kind in zip(ends, cycle(KINDS), strict=False):
        past = states[: end + 1]
        question = _ask(world, rng, past, kind)
        truth = answer(question, past[-1])
        yield Moment(
            tuple(changes[end - world.between : end]),
            question.text,
            question.kind,
            truth.hops,
            truth.text,
            was(question, past),
            {fact.id: fact.text for fact in past[-1].facts()},
            truth.ids,
        )


def _ask(world: World, rng: np.random.Generator, past: list[Household], kind: str) -> Question:
    """Draw a question, with probability `changed` one whose truth has changed, if there is one."""
    question = draw_question(rng, past[-1], kind)
    if rng.random() < world.changed:
        for _ in range(TRIES):
            if was(question, past) is not None:
                break
            question = draw_question(rng, past[-1], kind)
    return question
