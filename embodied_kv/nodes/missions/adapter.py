"""The adapter between a mission and the services of a robot."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.tiers import Tier
from embodied_kv.errors import ErrorCode
from embodied_kv.model.planner_prompts import PlannerAnswer, read_answer
from embodied_kv.msg import MemorySegment
from embodied_kv.nodes.control.session_parts import InstructionPart
from embodied_kv.nodes.missions.clients import MissionClients, ServiceRefusedError
from embodied_kv.planning.domain import Domain, Draft, SceneFacts, SceneQuery
from embodied_kv.planning.mission import MissionPart, MissionState, Outcome, next_step
from embodied_kv.session.robot_session import MISSION_PREFIX, RobotSession, StepCheckpoints

ALL = 2**32 - 1  # maximum number of segments that a query may request


class MissionAdapter:
    """Implements `planning.mission.Robot`; each method waits for one or more services.

    Args:
        calls: Clients of the services.
        session: The session of the robot, for checkpoints and rollbacks.
        domain: The meaning of instructions and answers.
        has_planner: Whether a planner plans; if not, the sentences of the mission are its steps.
        tier: The tier that stores the checkpoints of steps.
        step_seconds: The time limit (s) of a step.
        on_words: Receives the text of the mission.
        on_fault: Receives the failures that do not end the mission.
    """

    # Parts that a rollback leaves alone: the mission keeps its state, in which the step has
    # failed, and no instruction from before the mission is put in force.
    stay = MissionPart.name, InstructionPart.name

    def __init__(
        self,
        calls: MissionClients,
        session: RobotSession,
        domain: Domain,
        has_planner: bool,
        tier: Tier,
        step_seconds: float,
        on_words: Callable[[str], None],
        on_fault: Callable[[str], None],
    ) -> None:
        self._calls, self._session, self._step_seconds = calls, session, step_seconds
        self._checkpoints, self._tier = StepCheckpoints(session, MISSION_PREFIX, tier), tier
        self._domain, self._has_planner = domain, has_planner
        self._before: list[Draft] = []  # content of the memory before the step
        self._remembers: bool | None = None  # whether there is a memory; None: not checked
        self._own: dict[str, MemorySegment] = {}  # by id, if there is no memory node
        self._tasks = 0  # number of task records among them
        self._on_words, self._on_fault = on_words, on_fault

    def look(self, instruction: str = '', mission: str = '') -> None:
        self._learn(self._domain.look(self._known(), instruction, mission))

    def moves(self) -> tuple[int, ...]:
        return self._domain.moves(self._known())

    def plan(self, state: MissionState) -> PlannerAnswer:
        if not self._has_planner:
            return next_step(state)
        return read_answer(self._calls.call('memory/plan', question=state.question).text)

    def refusal(self, instruction: str) -> str:
        if why := self._domain.refusal(instruction, self._known()):
            self._on_fault(why)
        return why

    def confirms(self, instruction: str) -> bool:
        confirmed = self._domain.confirms(instruction, self._known())
        if not confirmed:
            self._on_fault(f'the scene query disagrees that the step is done: {instruction}')
        return confirmed

    def act(self, instruction: str) -> Outcome:
        self._before = self._known()
        return self._calls.act(instruction, self._step_seconds)

    def remember(self, instruction: str, done: bool) -> None:
        text = self._domain.record(instruction, done, self._before)
        facts = self._domain.facts_of_step(instruction) if done else []
        self._upsert([('', 'task', text), *facts])

    def mark(self, step: int) -> None:
        self._calls.check()
        try:
            tier = self._checkpoints.snapshot(
                lambda: self._session.observer.present_scene(self._calls.check)
            )
        except CapsuleError as error:
            return self._on_fault(
                f'no checkpoint before step {step} (parameter step_checkpoint_tier): {error}'
            )
        if tier is not self._tier:  # warn once
            self._on_fault(
                f'there is no {self._tier} tier: the {tier} tier stores the checkpoints of steps'
            )
            self._tier = tier

    def rewind(self) -> None:
        self._calls.check()
        try:
            self._checkpoints.roll_back(exclude=self.stay)
        except CapsuleError as error:
            self._on_fault(f'not rewound: {error}')

    def say(self, words: str) -> None:
        self._on_words(words)

    def _known(self) -> list[Draft]:
        """Return the content of the memory, oldest change first."""
        return [_draft(segment) for segment in self._segments()]

    def _segments(self) -> list[MemorySegment]:
        """Return all segments, oldest change first."""
        if not self._has_memory():
            return list(self._own.values())
        found = self._calls.call('memory/query', segments=ALL).segments
        return sorted(found, key=lambda segment: (segment.step, _number(segment.id)))

    def _learn(self, look: SceneQuery) -> None:
        try:
            questions = next(look)
            while True:
                questions = look.send(self._calls.ask(questions))
        except StopIteration as over:
            self._remember(over.value)

    def _remember(self, seen: SceneFacts) -> None:
        self._upsert(seen.drafts)
        for segment in self._segments() if seen.gone else ():
            if not self._domain.names(_draft(segment)).isdisjoint(seen.gone):
                self._forget(segment.id)

    def _has_memory(self) -> bool:
        """Return whether a memory node is active; a robot without a planner may lack one."""
        if self._remembers is None:
            self._remembers = self._has_planner or self._memory_answers()
            if not self._remembers:
                self._on_fault('the memory node is not active: this mission is not remembered')
        return self._remembers

    def _memory_answers(self) -> bool:
        if not self._calls.has('memory/query'):
            return False
        try:
            self._calls.call('memory/query', segments=1)
        except ServiceRefusedError as error:
            if error.code != ErrorCode.NOT_ACTIVE:
                raise
            return False
        return True

    def _forget(self, id: str) -> None:
        if not self._has_memory():
            del self._own[id]
            return
        try:
            self._calls.call('memory/remove', id=id)
        except ServiceRefusedError as error:  # it may have been removed in the meantime
            self._on_fault(f'not forgotten: {error}')

    def _upsert(self, drafts: Sequence[Draft]) -> None:
        segments = [MemorySegment(id=id, kind=kind, text=text) for id, kind, text in drafts]
        if not self._has_memory():
            for segment in segments:
                if not segment.id:
                    self._tasks += 1
                    segment.id = f'task {self._tasks}'
                    segment.text = f'{segment.id}: {segment.text}'
                self._own.pop(segment.id, None)  # the newest change is the last
                self._own[segment.id] = segment
        elif segments:
            self._calls.call('memory/upsert', segments=segments)


def _draft(segment: MemorySegment) -> Draft:
    return segment.id, segment.kind, segment.text


def _number(id: str) -> int:
    """Return the number of a task record; 0 for other segments."""
    _, _, number = id.partition('task ')
    return int(number) if number.isdecimal() else 0
