"""What a mission asks of a robot, by the services of its suite.

Knows which service says what, and the words of a look at the table. Does not know in which order
a mission asks.
"""

from __future__ import annotations

from collections.abc import Callable

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.tiers import Tier
from embodied_kv.demo.sim.eyes import Look, Seen, beside, look_around, look_at
from embodied_kv.demo.sim.mission_memory import parse_task, read_table, refusal
from embodied_kv.demo.sim.mission_table import MOVES, KnownTable
from embodied_kv.msg import MemorySegment
from embodied_kv.nodes.control.session_parts import InstructionPart
from embodied_kv.nodes.missions.calls import Calls, ServiceRefused
from embodied_kv.planning.mission import Outcome
from embodied_kv.planning.mission_part import MissionPart
from embodied_kv.session.boundaries import Boundaries
from embodied_kv.session.robot_session import BY_MISSIONS, RobotSession

ALL = 2**32 - 1  # segments, as many as a query may ask for
UNKNOWN = 'table'  # where a thing lay of which nobody said where


class Crew:
    """`planning.mission.Robot`, whose every call waits for a service or several.

    session: whose computation is marked and rewound. tier: that keeps its boundaries.
    step_seconds: that a step may take. on_words: told what the mission says. on_fault: told what
    could not be done.
    """

    # A rewound step tells the arm nothing: an instruction from before the mission is not told
    # again. The mission knows that the step failed, and goes on.
    stay = MissionPart.name, InstructionPart.name

    def __init__(
        self,
        calls: Calls,
        session: RobotSession,
        tier: Tier,
        step_seconds: float,
        on_words: Callable[[str], None],
        on_fault: Callable[[str], None],
    ) -> None:
        self._calls, self._session, self._step_seconds = calls, session, step_seconds
        self._boundaries, self._tier = Boundaries(session, BY_MISSIONS, tier), tier
        self._before = KnownTable({}, ())  # as it was known before the step
        self._on_words, self._on_fault = on_words, on_fault

    def look(self, instruction: str = '') -> None:
        known = self._known()
        self._learn(look_at(instruction, known) if instruction else look_around(known))

    def moves(self) -> tuple[int, ...]:
        return self._known().moves

    def plan(self, question: str) -> str:
        return self._calls.call('memory/plan', question=question).text

    def refusal(self, instruction: str) -> str:
        if why := refusal(instruction, self._known()):
            self._on_fault(why)
        return why

    def act(self, instruction: str) -> Outcome:
        self._before = self._known()
        return self._calls.act(instruction, self._step_seconds)

    def remember(self, instruction: str, done: bool) -> None:
        task = parse_task(instruction)
        text = f'{instruction}, not finished'
        if done and task is not None and task.family in MOVES:
            text = f'{instruction}, from the {self._before.origin(task.target, UNKNOWN)}'
        elif done:
            text = instruction
        self._upsert([('', 'task', text), *(beside(instruction) if done else ())])

    def mark(self, step: int) -> None:
        self._calls.check()
        try:
            tier = self._boundaries.take(lambda: self._session.sight.now(self._calls.check))
        except CapsuleError as error:
            return self._on_fault(f'no boundary before step {step}, see boundary_tier: {error}')
        if tier is not self._tier:  # said once
            self._on_fault(f'no {self._tier} tier: boundaries are kept in that of the {tier}')
            self._tier = tier

    def rewind(self) -> None:
        self._calls.check()
        try:
            self._boundaries.go_back(but=self.stay)
        except CapsuleError as error:
            self._on_fault(f'not rewound: {error}')

    def say(self, words: str) -> None:
        self._on_words(words)

    def _known(self) -> KnownTable:
        """What memory tells, records in the order in which they were made."""
        return read_table([segment.text for segment in self._segments()])

    def _segments(self) -> list[MemorySegment]:
        """All that is remembered, the oldest change first."""
        found = self._calls.call('memory/query', segments=ALL).segments
        return sorted(found, key=lambda segment: (segment.step, _number(segment.id)))

    def _learn(self, look: Look) -> None:
        try:
            questions = next(look)
            while True:
                questions = look.send(self._calls.ask(questions))
        except StopIteration as over:
            self._remember(over.value)

    def _remember(self, seen: Seen) -> None:
        self._upsert(seen.drafts)
        for segment in self._segments() if seen.gone else ():
            told = read_table([segment.text])
            if not {*told.where, *told.places}.isdisjoint(seen.gone):
                self._forget(segment.id)

    def _forget(self, id: str) -> None:
        try:
            self._calls.call('memory/remove', id=id)
        except ServiceRefused as error:  # somebody else has removed it meanwhile
            self._on_fault(f'not forgotten: {error}')

    def _upsert(self, drafts: object) -> None:
        segments = [MemorySegment(id=id, kind=kind, text=text) for id, kind, text in drafts]
        if segments:
            self._calls.call('memory/upsert', segments=segments)


def _number(id: str) -> int:
    """Of a record of a task; they are numbered as they come."""
    _, _, number = id.partition('task ')
    return int(number) if number.isdecimal() else 0
