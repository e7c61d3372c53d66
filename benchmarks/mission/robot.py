"""A robot in simulated time: the tabletop, a policy behind the engine, a planner over its memory.

Knows the engine, planning and the clock of the scene. Does not know which mission it is given. The
computation of the engine and the planner is charged to the scene's clock: a chunk takes over once
it is made, a period lasts until its answer is complete, and the arm stands during scene queries
and planning.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from embodied_kv.control.rtc import passed
from embodied_kv.demo.domain import TabletopDomain
from embodied_kv.demo.sim.language import DONE
from embodied_kv.demo.sim.phases import Phase
from embodied_kv.demo.sim.rollout import SET_POINT, Rollout
from embodied_kv.demo.sim.scene import CAMERAS
from embodied_kv.demo.sim.scene_queries import query_table, query_target
from embodied_kv.demo.sim.table_memory import (
    MOVES,
    confirms,
    parse_task,
    read_table,
    refusal,
)
from embodied_kv.demo.sim.tables import Orders, Tables
from embodied_kv.demo.sim.tabletop import Tabletop
from embodied_kv.demo.sim.tasks import Judge, Task
from embodied_kv.engine.engine import Engine
from embodied_kv.kv.handle import KvHandle
from embodied_kv.model.planner_prompts import PlannerAnswer, read_answer
from embodied_kv.planning.domain import SceneQuery
from embodied_kv.planning.mission import MissionState, Outcome
from embodied_kv.planning.notes import NoteTaker
from embodied_kv.planning.planning import Planning
from embodied_kv.types import Observation
from training.planner.mission_oracle import Progress, Tried, next_step
from training.planner.missions import Mission
from training.planner.simulated_table import SimulatedTable
from training.policy.expert import plan as expert_plan

DOMAIN = TabletopDomain()

ASK_EVERY, STEP_SECONDS = 1.0, 20.0  # s, as the nodes do
WORDS = 48  # tokens of an answer
ARM, SPEED = 6, 1.0  # joints without the fingers; rad/s, of moves between steps
AT_ONCE = 8  # questions


@dataclass(frozen=True)
class How:
    """The planner, the policy and the memory of a mission.

    planner: `model` or `rules`. policy: `model` or `expert`. memory: the facts known at the start,
    `all`, `none` or `stale`. method: of reuse, for planning. latency: s from an observation to its
    chunk, in addition to the engine's time. views: poses from which the scene is queried: `here`,
    or `home`, the pose at the start, to which the arm moves before. back: whether the arm moves
    back along its way after a failed step.
    """

    planner: str = 'model'
    policy: str = 'model'
    memory: str = 'all'
    method: str = 'keep'
    latency: float = 0.0
    views: str = 'here'
    back: bool = False


@dataclass
class Account:
    """The cost of a mission.

    acting, moving, looking, planning: s of steps, of moves between them, of scene queries and of
    planning. plans: their number.

    failed: number of failed steps. wrong_beliefs: number of plans made while memory differed from
    the truth. wrong_plans: number of plans that differ from those of the rules for the same
    memory.
    """

    acting: float = 0.0
    moving: float = 0.0
    looking: float = 0.0
    planning: float = 0.0
    plans: int = 0
    failed: int = 0
    wrong_beliefs: int = 0
    wrong_plans: int = 0
    steps: list[tuple[str, bool]] = field(default_factory=list)  # (family, whether it was done)


class SimulatedRobot:
    """`planning.mission.Robot` on a simulated table.

    state: returns the progress of the mission, for the rules. truth: returns the true table, for
    the account. charged: returns the s of work so far; only differences are used.
    """

    def __init__(
        self,
        table: Tabletop,
        engine: Engine,
        planning: Planning,
        mission: Mission,
        how: How,
        state: Callable[[], MissionState],
        truth: Callable[[], SimulatedTable],
        charged: Callable[[], float] = time.process_time,
    ) -> None:
        self._table, self._engine, self._planning = table, engine, planning
        self._charged = charged
        self._mission, self._how, self._state, self._truth = mission, how, state, truth
        self._rollout = Rollout(table)
        self._dt = engine.policy.config.action_dt
        records = [(id, i) for i, (id, _) in enumerate(planning.tasks())]
        self._notes, self._sequence = NoteTaker(TabletopDomain(), 48, records), 0
        self.account, self.said = Account(), []
        self._home = table.state()

    # ------------------------------------------------------------------ memory

    def memory(self) -> tuple[str, ...]:
        """Return the texts of memory: things first, then the task records in order."""
        segments = self._planning.memory.store.list()
        records = sorted((s for s in segments if s.kind == 'task'), key=lambda s: s.step)
        return tuple(s.text for s in (*(s for s in segments if s.kind != 'task'), *records))

    def moves(self) -> tuple[int, ...]:
        return read_table(self.memory()).moves

    def remember(self, instruction: str, done: bool) -> None:
        task = parse_task(instruction)
        self._notes.tell(instruction, 0)
        text = f'{instruction}, not finished'
        if done and task.family in MOVES:
            text = f'{instruction}, from the {self._before.origin(task.target)}'
        elif done:
            text = instruction
        self._planning.advance()
        self._planning.upsert(
            *self._notes.conclude(text), *(DOMAIN.facts_of_step(instruction) if done else ())
        )

    # ------------------------------------------------------------------ looking and planning

    def look(self, instruction: str = '', mission: str = '') -> None:
        if self._how.views == 'home':
            self._move(self._way_home())
        known = read_table(self.memory())
        whole = query_table(known, mission)
        self._learn(query_target(instruction, known) if instruction else whole)

    def _learn(self, look: SceneQuery) -> None:
        seen, began = self._observe(''), self._charged()
        (handle,) = self._engine.prefill([seen])
        try:
            questions = next(look)
            while True:
                questions = look.send(self._ask(handle, questions))
        except StopIteration as over:
            self._planning.upsert(*over.value.drafts)
            for id in over.value.gone:
                self._planning.remove(id)
        self.account.looking += self._charged() - began

    def plan(self, state: MissionState) -> PlannerAnswer:
        known = read_table(self.memory())
        right = next_step(self._mission, known, self._progress()).text
        said, began = right, self._charged()
        if self._how.planner == 'model':
            said = self._planning.plan(state.question, method=self._how.method).text
        self.account.planning += self._charged() - began
        self.account.plans += 1
        self.account.wrong_plans += said != right
        self.account.wrong_beliefs += dict(known.where) != dict(self._truth().where)
        return read_answer(said)

    def _progress(self) -> Progress:
        state = self._state()
        tried = tuple(Tried(parse_task(one.step), one.done) for one in state.tried)
        return Progress(state.part - 1, state.moves[:3], tried)

    def refusal(self, instruction: str) -> str:
        return refusal(instruction, read_table(self.memory()))

    def confirms(self, instruction: str) -> bool:
        return confirms(instruction, read_table(self.memory()))

    # ------------------------------------------------------------------ acting

    def act(self, instruction: str) -> Outcome:
        task, began = parse_task(instruction), self._rollout.time
        self._before = read_table(self.memory())
        truth, ask_at = self._table.truth(), began + ASK_EVERY
        is_real = {task.target, task.place or task.target} <= {t.name for t in truth.things}
        judge = Judge(task, truth) if is_real else None  # None: the scene queries were wrong
        said = False
        while is_real or self._how.policy == 'model':
            start = self._rollout.time
            said = self._period(instruction, task, start, start >= ask_at)
            ask_at = start + ASK_EVERY if start >= ask_at else ask_at
            if judge is not None:
                judge.see(self._table.truth())
            if said or self._rollout.time - began >= STEP_SECONDS:
                break
        self._rest()
        if self._how.back and not said:
            self._move(self._way_back(began))
        done = judge is not None and judge.done
        self.account.acting += self._rollout.time - began
        self.account.failed += not done
        self.account.steps.append((task.family, done))
        return Outcome(said)

    def _period(self, instruction: str, task: Task, start: float, asks: bool) -> bool:
        """Run one control period, or longer until an answer is complete.

        Return whether the policy reports that the step is done. asks: whether the policy is asked.
        """
        seen, began, said = self._observe(instruction), self._charged(), False
        if self._how.policy == 'expert':
            chunk, holds = self._expert_chunk(task)
            made = answered = 0.0
            said = asks and holds
        else:
            chunk, handle = self._chunk(seen)
            made = self._charged() - began
            said = asks and self._ask(handle, [DONE])[0].lower().startswith('yes')
            answered = self._charged() - began
        latency = self._how.latency + made
        self._rollout.advance(latency)
        if passed(latency, self._dt, len(chunk)) < len(chunk):
            self._rollout.follow(chunk, start, self._dt)
        self._rollout.advance(max(self._dt, self._how.latency + answered) - latency)
        return said

    def _chunk(self, seen: Observation) -> tuple[np.ndarray, KvHandle]:
        (handle,) = self._engine.prefill([seen])
        with self._engine.kv.acquire(handle) as lease:
            (made,) = self._engine.denoise([lease], [math.inf])
        return made.values, handle

    def _expert_chunk(self, task: Task) -> tuple[np.ndarray, bool]:
        """Return the expert's chunk, and whether it holds still because the task is done."""
        truth = self._table.truth()
        orders = Orders.of([task], [[thing.name for thing in truth.things]])
        chunks, phases = expert_plan(self._table.state()[None], Tables.of([truth]), orders, 10)
        return chunks[0], bool(phases[0] == Phase.HOLD)

    def _rest(self) -> None:
        """Stop the arm at its present position."""
        here = np.repeat(self._table.state()[None].astype(np.float64), 2, 0)
        self._rollout.follow(here, self._rollout.time, self._dt)
        self._rollout.advance(self._dt)

    def _way_home(self) -> np.ndarray:
        """Return the joints [n, 7] of each control period of a straight way to the start pose."""
        here = self._table.state().astype(np.float64)
        count = math.ceil(np.abs(self._home - here)[:ARM].max() / (SPEED * self._dt))
        return here + np.linspace(0, 1, count + 1)[1:, None] * (self._home - here)

    def _way_back(self, began: float) -> np.ndarray:
        """Return the joints of each control period of the way since a time, in reverse."""
        every = round(self._dt / SET_POINT)
        count = round((self._rollout.time - began) / SET_POINT)
        return np.array(self._rollout.path[-count:][::-every]).astype(np.float64)

    def _move(self, way: np.ndarray) -> None:
        """Move the arm along a way [n, 7], at most SPEED, with the fingers as they are; rest."""
        if not len(way):
            return
        way = way.copy()
        way[:, ARM:] = self._rollout.player.target(self._rollout.time)[ARM:]
        steps = np.abs(np.diff(way[:, :ARM], axis=0, prepend=self._table.state()[None, :ARM]))
        dt = max(self._dt, float(steps.max()) / SPEED)
        self._rollout.follow(way, self._rollout.time + dt, dt)
        self._rollout.advance(len(way) * dt)
        self._rest()
        self.account.moving += len(way) * dt

    def _observe(self, instruction: str) -> Observation:
        images = self._table.render()
        self._sequence += 1
        return Observation(
            images=tuple(images[name] for name in CAMERAS),
            state=self._table.state(),
            instruction=instruction,
            stamp=round(self._rollout.time * 1e9),
            deadline=-math.inf,
            sequence=self._sequence,
        )

    def _ask(self, handle: KvHandle, questions: list[str]) -> list[str]:
        """Return the policy's answers to questions about a frame, AT_ONCE questions at a time."""
        engine, answers = self._engine, []
        for begin in range(0, len(questions), AT_ONCE):
            asked = questions[begin : begin + AT_ONCE]
            streams = [engine.open(handle, question, max_tokens=WORDS) for question in asked]
            while engine.kv.streams.live():
                engine.decode()
            decode = engine.policy.tokenizer.decode
            answers += [decode(stream.tokens).strip() for stream in streams]
        return answers

    # ------------------------------------------------------------------ the rest of a robot

    def mark(self, step: int) -> None:
        """Do nothing: between two steps no stream decodes and no chunk is left."""

    def rewind(self) -> None:
        """Do nothing: there is no checkpoint."""

    def say(self, words: str) -> None:
        self.said.append(words)
