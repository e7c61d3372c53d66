"""Missions in natural language: plan, instruct, act, check and remember, step by step.

A `Mission` has the order of these actions and the progress; a `Robot` carries them out. One thread
runs a mission and waits; any thread may read the progress or interrupt it. The robot's own answers
decide whether a step is done: the policy reports it, and the scene query after the step must
agree. After a failed step the computation may be rolled back to the checkpoint before the step,
and the planner plans again. The arm is never rolled back.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from embodied_kv.capsule.capsule import CapsuleError, FrozenPart, facts_of
from embodied_kv.errors import ErrorCode
from embodied_kv.model.planner_prompts import PlannerAnswer, Tried, mission_question

MOST_STEPS = 40  # of a mission, including failed steps
MOST_ANSWERS = 100  # of the planner, including answers that are no step
MOST_PLANS = 3  # attempts to get a usable answer of the planner


class MissionInterruptedError(Exception):
    """The end of a mission without success; the message states the reason."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.UNKNOWN) -> None:
        super().__init__(message)
        self.code = code or ErrorCode.UNKNOWN


@dataclass(frozen=True)
class Outcome:
    """The result of a step, and the reason of its end."""

    done: bool
    why: str = ''


class Robot(Protocol):
    """The actions of a mission.

    Each method waits until it is done, or raises MissionInterruptedError.
    """

    def look(self, instruction: str = '', mission: str = '') -> None:
        """Query the whole scene, or what a step was about, and remember the answers.

        mission: the words of the client, with the names of objects in the scene.
        """

    def moves(self) -> tuple[int, ...]:
        """Return the numbers of the records of steps that moved an object, newest first."""

    def plan(self, state: MissionState) -> PlannerAnswer:
        """Return the planner's answer. Raise ValueError for an unusable one."""

    def refusal(self, instruction: str) -> str:
        """Return why an instruction may not be executed; '' if it may."""

    def confirms(self, instruction: str) -> bool:
        """Return whether memory agrees that an instruction is done, or cannot tell."""

    def act(self, instruction: str) -> Outcome:
        """Execute an instruction until the policy reports that it is done, or a timeout."""

    def remember(self, instruction: str, done: bool) -> None:
        """Record the end of a step."""

    def mark(self, step: int) -> None:
        """Take a checkpoint of the computation before a step."""

    def rewind(self) -> None:
        """Roll the computation back to the last checkpoint."""

    def say(self, words: str) -> None:
        """Send words to the client of the mission."""


@dataclass(frozen=True)
class MissionState:
    """The progress of a mission."""

    words: str  # the mission as given
    part: int = 1  # the current part of the mission, from 1
    moves: tuple[int, ...] = ()  # `Robot.moves` at the beginning of the part
    tried: tuple[Tried, ...] = ()  # the steps of the part
    said: tuple[str, ...] = ()  # the answers that were sent to the client
    steps: int = 0  # the number of steps so far
    acting: str = ''  # the instruction in force; '' between two steps
    answers: int = 0  # the number of answers of the planner
    step_time_limit: float = 0.0  # as given (s); 0: the default of the robot

    @property
    def question(self) -> str:
        """Return the question for the planner."""
        return mission_question(self.words, self.part, self.moves, self.tried)

    def in_part(self, part: int, moves: tuple[int, ...]) -> MissionState:
        """Return the state at the beginning of a part."""
        return replace(self, part=part, moves=moves, tried=())

    def after(self, step: str, done: bool) -> MissionState:
        """Return the state after a step."""
        tried = (*self.tried, Tried(step, done))
        return replace(self, tried=tried, steps=self.steps + 1, acting='')


def read_state(facts: Any) -> MissionState:
    """Return the state from its plain values. Raise ValueError for anything else."""
    try:
        state = MissionState(
            str(facts['words']),
            int(facts['part']),
            tuple(int(number) for number in facts['moves']),
            tuple(Tried(str(one['step']), bool(one['done'])) for one in facts['tried']),
            tuple(str(words) for words in facts['said']),
            int(facts['steps']),
            str(facts['acting']),
            int(facts.get('answers', 0)),
            float(facts.get('step_time_limit', 0.0)),
        )
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f'mission state must have all fields (got {error!r})') from error
    counts = state.part - 1, state.steps, state.answers, state.step_time_limit
    if not state.words.strip() or not all(0 <= count < math.inf for count in counts):
        raise ValueError(f'mission state must have words, and counts >= 0 (got {counts})')
    return state


@dataclass(frozen=True)
class MissionEnd:
    """The end of a mission: NONE if all of it was done, the reason, and the progress."""

    code: ErrorCode
    why: str
    state: MissionState = field(repr=False)

    @property
    def success(self) -> bool:
        return self.code == ErrorCode.NONE


class Mission:
    """Runs a mission from a given state on.

    `rewinds` states whether a failed step rolls the computation back. `on_state` receives every
    change of the state, on the same thread.
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
        """Run the mission and return its end; raise nothing that a `Robot` may raise."""
        try:
            return MissionEnd(*self._run(), self.state)
        except MissionInterruptedError as reason:
            return MissionEnd(reason.code, str(reason), self.state)

    def _run(self) -> tuple[ErrorCode, str]:
        self._begin()
        while self.state.steps < MOST_STEPS:
            answer = self._plan()
            words, state = answer.words, self.state
            match answer.kind:
                case 'over':
                    return ErrorCode.NONE, f'{state.steps} step' + 's' * (state.steps != 1)
                case 'impossible' | 'give up':
                    return ErrorCode.NOT_DONE, f'{answer.kind}: {words}'
                case 'done':
                    self._now(state.in_part(state.part + 1, self._robot.moves()))
                case 'say':
                    self._robot.say(words)
                    after = state.after(f'say: {words}', True)
                    self._now(replace(after, said=(*state.said, words)))
                case 'step' if state.tried[-1:] == (Tried(words, True),):
                    # The planner saw that the last step was not done, although the robot reported
                    # that it was; executing it again could repeat forever.
                    self._robot.remember(words, False)
                    self._now(replace(state, tried=(*state.tried[:-1], Tried(words, False))))
                case 'step':
                    self._step(words)
        return ErrorCode.NOT_DONE, f'not finished after {MOST_STEPS} steps'

    def _begin(self) -> None:
        """Query the scene, and execute an interrupted step again unless it is refused now.

        The step ends soon if it was done already.
        """
        state, robot = self.state, self._robot
        robot.look(mission=state.words)
        if state.acting and not robot.refusal(state.acting):
            self._step(state.acting)
        elif state.acting:
            self._now(replace(state, acting=''))
        elif not state.steps:
            self._now(state.in_part(state.part, robot.moves()))

    def _plan(self) -> PlannerAnswer:
        """Return a usable answer of the planner; query the scene after an unusable one."""
        for attempt in range(MOST_PLANS):
            if attempt:
                self._robot.look(mission=self.state.words)
            try:
                return self._answer()
            except ValueError as error:
                fault = error
        raise MissionInterruptedError(str(fault), ErrorCode.NOT_DONE)

    def _answer(self) -> PlannerAnswer:
        state, robot = self.state, self._robot
        if state.answers >= MOST_ANSWERS:
            raise MissionInterruptedError(
                f'not finished after {MOST_ANSWERS} answers of the planner', ErrorCode.NOT_DONE
            )
        self._now(replace(state, answers=state.answers + 1))
        answer = robot.plan(state)
        if answer.kind == 'step' and (refusal := robot.refusal(answer.words)):
            raise ValueError(refusal)
        return answer

    def _step(self, instruction: str) -> None:
        robot = self._robot
        self._now(replace(self.state, acting=instruction))
        robot.mark(self.state.steps)  # a mission that is restored from it executes this step
        done = robot.act(instruction).done
        if not done and self._rewinds:
            robot.rewind()
        try:
            robot.look(instruction)
        except MissionInterruptedError:
            robot.remember(instruction, done)
            raise
        # A scene query that disagrees with the policy a second time is outvoted.
        if done and self.state.tried[-1:] != (Tried(instruction, False),):
            done = robot.confirms(instruction)
        robot.remember(instruction, done)
        self._now(self.state.after(instruction, done))

    def _now(self, state: MissionState) -> None:
        self.state = state
        self._on_state(state)


class MissionPart:
    """The progress of a mission as part of a capsule.

    `state` returns that of the running mission, None if none runs; `go_on` replaces that mission.
    """

    name, depth = 'mission', 'planner'

    def __init__(
        self,
        state: Callable[[], MissionState | None],
        go_on: Callable[[MissionState | None], None],
    ) -> None:
        self._state, self._go_on = state, go_on

    def freeze(self) -> FrozenPart:
        state = self._state()
        return FrozenPart(facts={'mission': None if state is None else facts_of(state)})

    def check_resumable(self, frozen: FrozenPart) -> None:
        """Raise CapsuleError unless the capsule has a valid mission, or none."""
        self._read(frozen)

    def resume(self, frozen: FrozenPart) -> None:
        """Continue the mission of the capsule; the running one ends."""
        self._go_on(self._read(frozen))

    @staticmethod
    def _read(frozen: FrozenPart) -> MissionState | None:
        facts = frozen.facts
        if not isinstance(facts, dict) or 'mission' not in facts:
            raise CapsuleError('the capsule has no entry for the mission', ErrorCode.DAMAGED)
        try:
            return read_state(facts['mission']) if facts['mission'] is not None else None
        except ValueError as error:
            raise CapsuleError(
                f'the capsule has a damaged mission: {error}', ErrorCode.DAMAGED
            ) from error


TRIES = 3  # attempts at a failing step
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
    parts: list[str] = []
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
