"""A mission in words, as steps: plan, instruct, act, check, remember.

Knows in which order things happen, and how far a mission is. Does not know ROS, tokens, tables or
how anything is done: that is the `Robot`'s. One thread runs a mission and waits; any thread may
read how far it is, or interrupt it.

Whether a step is done, the robot's own eyes and words say. A step that failed may be rewound: the
computation goes back to where it was before the step, what is seen now is remembered, and the
planner plans anew. The arm is never rewound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from embodied_kv.capsule.capsule import CapsuleError, Fact, facts_of
from embodied_kv.capsule.part import FrozenPart
from embodied_kv.errors import ErrorCode
from embodied_kv.model.mission_words import PlannerAnswer, Tried, mission_question

MOST_STEPS = 40  # of a mission, the failed ones included
MOST_ANSWERS = 100  # of the planner, to a mission; those that move nothing included
MOST_PLANS = 3  # for a step, where the planner says nothing that can be told


class Interrupted(Exception):
    """The mission ends now, without success; the message states why."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.UNKNOWN) -> None:
        super().__init__(message)
        self.code = code or ErrorCode.UNKNOWN


@dataclass(frozen=True)
class Outcome:
    """Of a step. why: it ended, in words."""

    done: bool
    why: str = ''


class Robot(Protocol):
    """What a mission asks of a robot. Everything waits until it is done, or raises Interrupted."""

    def look(self, instruction: str = '') -> None:
        """What is seen now is remembered: all of it, or what a step was about."""

    def moves(self) -> tuple[int, ...]:
        """Numbers of the records of steps that moved a thing, the newest first."""

    def plan(self, state: MissionState) -> PlannerAnswer:
        """Return what the mission goes on with. Raises ValueError for an answer of no use."""

    def refusal(self, instruction: str) -> str:
        """Why this instruction is never told, '' where it may be: nothing else is acted on."""

    def act(self, instruction: str) -> Outcome:
        """The policy does it, until it says itself that it is done, or time is up."""

    def remember(self, instruction: str, done: bool) -> None:
        """A step is over: what was moved, from where, or that it was in vain."""

    def mark(self, step: int) -> None:
        """A boundary of the computation, before a step."""

    def rewind(self) -> None:
        """The computation goes back to the last boundary."""

    def say(self, words: str) -> None:
        """To whoever gave the mission."""


@dataclass(frozen=True)
class MissionState:
    """How far a mission is. words: as it was given. part: of its parts, from 1.

    moves: see `Robot.moves`, when the part began. tried: steps of the part. said: answers that
    were given. steps: carried out so far. acting: the instruction in force, '' between two steps.
    answers: of the planner so far. step_time_limit: s, as it was given; 0: the robot's own.
    """

    words: str
    part: int = 1
    moves: tuple[int, ...] = ()
    tried: tuple[Tried, ...] = ()
    said: tuple[str, ...] = ()
    steps: int = 0
    acting: str = ''
    answers: int = 0
    step_time_limit: float = 0.0

    @property
    def question(self) -> str:
        """For the planner."""
        return mission_question(self.words, self.part, self.moves, self.tried)

    def in_part(self, part: int, moves: tuple[int, ...]) -> MissionState:
        """At the beginning of a part."""
        return replace(self, part=part, moves=moves, tried=())

    def after(self, step: str, done: bool) -> MissionState:
        """Once a step is over."""
        tried = (*self.tried, Tried(step, done))
        return replace(self, tried=tried, steps=self.steps + 1, acting='')

    def in_vain(self) -> MissionState:
        """As if the last step had not been done."""
        *before, last = self.tried
        return replace(self, tried=(*before, replace(last, done=False)))

    def facts(self) -> dict[str, Fact]:
        """Plain values, from which `read_state` makes it again."""
        return facts_of(self)


def read_state(facts: object) -> MissionState:
    """What `MissionState.facts` wrote. Raises ValueError for anything else."""
    try:
        tried = tuple(Tried(str(one['step']), bool(one['done'])) for one in facts['tried'])
        state = MissionState(
            str(facts['words']),
            int(facts['part']),
            tuple(int(number) for number in facts['moves']),
            tried,
            tuple(str(words) for words in facts['said']),
            int(facts['steps']),
            str(facts['acting']),
            int(facts.get('answers', 0)),
            float(facts.get('step_time_limit', 0.0)),
        )
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f'this is no state of a mission: {error!r}') from error
    counts = state.part - 1, state.steps, state.answers, state.step_time_limit
    if not state.words.strip() or not all(0 <= count < math.inf for count in counts):
        raise ValueError('this is no state of a mission: it has no words, or counts below nothing')
    return state


@dataclass(frozen=True)
class MissionEnd:
    """The end of a mission.

    Args:
        code: NONE if all of it was done.
        why: One sentence.
        state: How far it was.
    """

    code: ErrorCode
    why: str
    state: MissionState = field(repr=False)

    @property
    def success(self) -> bool:
        """Return whether all of it was done."""
        return self.code == ErrorCode.NONE


class Mission:
    """One mission, from where `state` says. on_state: told of every change, on the same thread.

    rewinds: whether a failed step rolls the computation back.
    """

    def __init__(
        self,
        robot: Robot,
        state: MissionState,
        *,
        rewinds: bool = True,
        on_state: Callable[[MissionState], None] = lambda state: None,
    ) -> None:
        self._robot, self._rewinds, self._on_state = robot, rewinds, on_state
        self.state = state

    def run(self) -> MissionEnd:
        """To its end, whatever that is. Raises nothing that a `Robot` may raise."""
        try:
            return self._run()
        except Interrupted as reason:
            return self._end(reason.code, str(reason))

    def _run(self) -> MissionEnd:
        self._begin()
        while self.state.steps < MOST_STEPS:
            answer = self._plan()
            match answer.kind:
                case 'over':
                    return self._end(ErrorCode.NONE, f'{self.state.steps} steps')
                case 'impossible' | 'give up':
                    return self._end(ErrorCode.NOT_DONE, f'{answer.kind}: {answer.words}')
                case 'done':
                    self._now(self.state.in_part(self.state.part + 1, self._robot.moves()))
                case 'say':
                    self._say(answer.words)
                case 'step' if self._is_again(answer.words):
                    self._robot.remember(answer.words, False)
                    self._now(self.state.in_vain())
                case 'step':
                    self._step(answer.words)
        return self._end(ErrorCode.NOT_DONE, f'not over after {MOST_STEPS} steps')

    def _begin(self) -> None:
        """A step that was cut off is told again: it is soon over where it had been done.

        Unless what it names has not been seen meanwhile: then it is planned anew.
        """
        state, robot = self.state, self._robot
        robot.look()
        if state.acting and not robot.refusal(state.acting):
            self._step(state.acting)
        elif state.acting:
            self._now(replace(state, acting=''))
        elif not state.steps:
            self._now(state.in_part(state.part, robot.moves()))

    def _plan(self) -> PlannerAnswer:
        """What it is to go on with. After an answer of no use the robot looks, and asks anew."""
        for attempt in range(MOST_PLANS):
            if attempt:
                self._robot.look()
            try:
                return self._answer()
            except ValueError as error:
                fault = error
        raise Interrupted(str(fault), ErrorCode.NOT_DONE)

    def _answer(self) -> PlannerAnswer:
        """The planner's. Raises ValueError where it is of no use."""
        state, robot = self.state, self._robot
        if state.answers >= MOST_ANSWERS:
            raise Interrupted(
                f'not over after {MOST_ANSWERS} answers of the planner', ErrorCode.NOT_DONE
            )
        self._now(replace(state, answers=state.answers + 1))
        answer = robot.plan(state)
        if answer.kind == 'step' and (refusal := robot.refusal(answer.words)):
            raise ValueError(refusal)
        return answer

    def _say(self, words: str) -> None:
        self._robot.say(words)
        self._now(replace(self.state.after(f'say: {words}', True), said=(*self.state.said, words)))

    def _is_again(self, instruction: str) -> bool:
        """Whether the last step is planned anew, though the robot said that it was done.

        By what was seen then it was not, and that many a time would be for ever.
        """
        return self.state.tried[-1:] == (Tried(instruction, True),)

    def _step(self, instruction: str) -> None:
        robot = self._robot
        self._now(replace(self.state, acting=instruction))
        robot.mark(self.state.steps)  # whoever goes on from there tells this step
        outcome = robot.act(instruction)
        robot.remember(instruction, outcome.done)
        if not outcome.done and self._rewinds:
            robot.rewind()
        robot.look(instruction)
        self._now(self.state.after(instruction, outcome.done))

    def _now(self, state: MissionState) -> None:
        self.state = state
        self._on_state(state)

    def _end(self, code: ErrorCode, why: str) -> MissionEnd:
        return MissionEnd(code, why, self.state)


class MissionPart:
    """state: of the mission that runs, None where none does. go_on: with another one, or none."""

    name, depth = 'mission', 'planner'

    def __init__(
        self,
        state: Callable[[], MissionState | None],
        go_on: Callable[[MissionState | None], None],
    ) -> None:
        self._state, self._go_on = state, go_on

    def buffers(self) -> tuple:
        """None: a mission is words and numbers."""
        return ()

    def freeze(self) -> FrozenPart:
        """Its state, nothing where there is no mission."""
        state = self._state()
        return FrozenPart(facts={'mission': state.facts() if state else None})

    def check(self, frozen: FrozenPart) -> None:
        """Raises CapsuleError for what is no mission."""
        self._read(frozen)

    def resume(self, frozen: FrozenPart) -> None:
        """It goes on from there; the one that runs ends."""
        self._go_on(self._read(frozen))

    @staticmethod
    def _read(frozen: FrozenPart) -> MissionState | None:
        facts = frozen.facts
        if not isinstance(facts, dict) or 'mission' not in facts:
            raise CapsuleError(
                'the capsule does not say whether there was a mission', ErrorCode.DAMAGED
            )
        try:
            return read_state(facts['mission']) if facts['mission'] is not None else None
        except ValueError as error:
            raise CapsuleError(
                f'the capsule has a damaged mission: {error}', ErrorCode.DAMAGED
            ) from error
