"""A stand-in for arm, perception and planner that works on sentences about a simulated table.

It answers truthfully, and executes instructions or fails. Memory is written only from its answers,
as in the suite.
"""

import numpy as np

from embodied_kv.demo.domain import TabletopDomain
from embodied_kv.demo.sim.language import COUNT, HELD
from embodied_kv.demo.sim.scene_queries import query_table, query_target
from embodied_kv.demo.sim.table_memory import (
    FLOOR,
    MOVES,
    ROBOT,
    TABLE,
    confirms,
    parse_task,
    read_table,
    refusal,
)
from embodied_kv.model.planner_prompts import read_answer
from embodied_kv.planning.mission import Outcome
from embodied_kv.planning.notes import NoteTaker
from training.planner.mission_draws import draw_accident
from training.planner.mission_oracle import Progress, Tried, next_step

DOMAIN = TabletopDomain()


class TableRobot:
    """A robot on a simulated table, as a mission uses it.

    table: the true state. mission: in parsed form, for the rules that plan. success: probability
    that a step succeeds.
    """

    def __init__(self, table, mission, success=1.0, seed=0, known=True):
        self.table, self._mission, self._success = table, mission, success
        self._rng = np.random.default_rng(seed)
        facts = table.facts() if known else ()
        records = [fact.id for fact in facts if fact.kind == 'task']
        self._notes = NoteTaker(
            TabletopDomain(), 48, [(id, step) for step, id in enumerate(records)]
        )
        self._memory = {fact.id: fact.text for fact in facts}
        self.calls, self.said, self.interrupt = [], [], None

    # ------------------------------------------------------------------ interface of a mission

    def look(self, instruction='', mission=''):
        self.calls.append('look')
        known = read_table(self.memory())
        look = query_target(instruction, known) if instruction else query_table(known, mission)
        try:
            questions = next(look)
            while True:
                questions = look.send([self.answer(question) for question in questions])
        except StopIteration as over:
            for id, _, text in over.value.drafts:
                self._memory[id] = text
            for id in over.value.gone:
                self._memory.pop(id)

    def moves(self):
        return read_table(self.memory()).moves

    def plan(self, state):
        return read_answer(self.says(state.question))

    def says(self, question):
        """Return the answer of its planner."""
        self.question = question
        if self.interrupt:
            self.interrupt('plan')
        step = next_step(self._mission, read_table(self.memory()), self._progress())
        return step.text

    def refusal(self, instruction):
        return refusal(instruction, read_table(self.memory()))

    def confirms(self, instruction):
        return confirms(instruction, read_table(self.memory()))

    def act(self, instruction):
        self.calls.append(instruction)
        if self.interrupt:
            self.interrupt(instruction)
        task, self._before = parse_task(instruction), self.table
        self.done = self._rng.random() < self._success and not self.table.hindrance(task)
        if self.done:
            self.table = self.table.do(task)
        else:
            self.table = self.table.fail(task, draw_accident(self._rng, task, self.table))
        return Outcome(self.done, 'as it went')

    def remember(self, instruction, done):
        task = parse_task(instruction)
        self._notes.tell(instruction, 0)
        moved = done and task.family in MOVES
        origin = self._before.origin(task.target)
        words = f'{instruction}, from the {origin}' if moved else instruction
        for id, _, text in self._notes.conclude(words if done else f'{instruction}, not finished'):
            self._memory.pop(id, None)  # the newest record comes last
            self._memory[id] = text
        if done:
            self._memory |= {id: text for id, _, text in DOMAIN.facts_of_step(instruction)}

    def mark(self, step):
        self.calls.append('mark')

    def rewind(self):
        self.calls.append('rewind')

    def say(self, words):
        self.said.append(words)

    def memory(self):
        return tuple(self._memory.values())

    # ------------------------------------------------------------------ true state

    def answer(self, question):
        """Return the answer of a policy that makes no errors."""
        words = question.rstrip('?').split()
        if question == HELD:
            return self.table.holds(ROBOT)
        if question == COUNT:
            return str(sum(name in self.table.where for name in self.things))
        name = ' '.join(words[-2:])
        match words[0]:
            case 'Where' if self.table.where.get(name) == ROBOT:
                return HELD_BY
            case 'Where' if self.table.where.get(name, TABLE) == TABLE:
                return 'on the table'  # the simplest of the true answers
            case 'Where':
                return self.table.lies(name)
            case 'Do':
                return 'yes' if name in self.things else 'no'
            case 'What' if words[1] == 'shape':
                (name,) = [name for name in self.things if words[4] in name]
                return name.split()[1]
        return self.table.holds(name)

    @property
    def things(self):
        on_floor = [name for name, place in self.table.where.items() if place == FLOOR]
        return [n for n in (*self.table.where, *self.table.places) if n not in on_floor]

    def _progress(self):
        state = self.run.state
        tried = tuple(Tried(self._task(one.step), one.done) for one in state.tried)
        return Progress(state.part - 1, state.moves[:3], tried)

    @staticmethod
    def _task(step):
        answer = read_answer(step)
        return parse_task(answer.words) if answer.kind == 'step' else None


HELD_BY = 'held by the robot'
