"""A robot of a fleet that carries out its mission in virtual time.

Knows its own body, and the process that serves it. Does not know the other robots, nor which parts
are on. All computation waits for the one device, while the scene continues.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from benchmarks.mission.cases import true_table
from benchmarks.mission.robot import AT_ONCE, How, SimulatedRobot
from benchmarks.whole.body import Body
from benchmarks.whole.process import Process
from benchmarks.whole.settings import Settings
from benchmarks.whole.turns import Turn
from benchmarks.whole.voices import Frame
from embodied_kv.demo.sim.language import DONE
from embodied_kv.demo.sim.table_memory import parse_task, read_table
from embodied_kv.demo.sim.tasks import Judge, Task
from embodied_kv.fleet.protocol import Request
from embodied_kv.fleet.request_timing import RequestTiming
from embodied_kv.kv.rows import OutOfRowsError
from embodied_kv.model.planner_checkpoint import LoadedPlanner
from embodied_kv.model.planner_prompts import PlannerAnswer, read_answer
from embodied_kv.planning.domain import SceneFacts, SceneQuery
from embodied_kv.planning.mission import MissionState, Outcome
from embodied_kv.planning.planning import Planning
from embodied_kv.types import ActionChunk
from training.planner.mission_oracle import next_step

T = TypeVar('T')


class FleetRobot(SimulatedRobot):
    """`planning.mission.Robot`, on a turn of its own.

    planner: that of `planning`; the device is charged the steps of each plan once it is made. With
    the setting `rules`, the plans of the rules are executed in place of its own. on_mark,
    on_round, on_rewind: called at a boundary, during a step, and after a failed step.
    """

    def __init__(
        self,
        body: Body,
        process: Process,
        turn: Turn,
        planning: Planning,
        planner: LoadedPlanner,
        settings: Settings,
        state: Callable[[], MissionState],
        on_mark: Callable[[], None],
        on_round: Callable[[], None],
        on_rewind: Callable[[], None],
    ) -> None:
        case, truth = body.case, lambda: true_table(body.table.truth())
        super().__init__(body.table, process.engine, planning, case.mission, How(), state, truth)
        self._body, self._process, self._turn = body, process, turn
        self._planner, self._settings = planner, settings
        self._on_mark, self._on_round, self._on_rewind = on_mark, on_round, on_rewind
        s = settings
        self._timing = RequestTiming(self._dt, s.request_ahead, s.retry_interval)
        self._tasks = 0

    # ------------------------------------------------------------------ looking and planning

    def look(self, instruction: str = '', mission: str = '') -> None:
        """Stop the arm, and query the scene."""
        self._turn.here(self._body.rest)
        super().look(instruction, mission)

    def _learn(self, look: SceneQuery) -> None:
        voices = self._process.voices
        seen = self._turn.here(lambda: self._body.see(''))
        while True:
            try:
                frame = self.on_device('frame', lambda: voices.look(seen))
                break
            except OutOfRowsError:  # all rows, or the KV budget, are in use
                self._turn.until(self._body.now + self._settings.retry_interval)
        try:
            self._answered(look, frame)
        finally:
            frame.leave()

    def _answered(self, look: SceneQuery, frame: Frame) -> None:
        try:
            questions = next(look)
            while True:
                questions = look.send(self._ask(frame, questions))
        except StopIteration as over:
            self._remember(over.value)

    def _remember(self, seen: SceneFacts) -> None:
        self._planning.upsert(*seen.drafts)
        for id in seen.gone:
            self._planning.remove(id)

    def _ask(self, frame: Frame, questions: list[str]) -> list[str]:
        answers: list[str] = []
        for begin in range(0, len(questions), AT_ONCE):
            answers += self._turn.wait(
                lambda resume, asked=questions[begin : begin + AT_ONCE]: _all(
                    self._process.voices.ask, frame, asked, resume
                )
            )
        return answers

    def plan(self, state: MissionState) -> PlannerAnswer:
        known = read_table(self.memory())
        right = next_step(self._mission, known, self._progress()).text
        store, record = self._planning.memory.store, self._body.record
        before = {*store.keys()}
        plan = self._planning.plan(state.question)
        answer = right if self._settings.rules else plan.text
        fresh = [sum(store.lengths(key)) for key in {*store.keys()} - before]
        tokens = len(self._planner.tokenizer.encode(answer))
        costs, block = self._process.costs.planner, self._settings.step_tokens
        for cost in costs.steps(plan, fresh, tokens, block):
            self.on_device('plans', partial(self._process.meter.charge, cost))
        record.plans += 1
        record.wrong_plans += plan.text != right
        record.computed_shares.append(plan.computed_share)
        return read_answer(answer)

    # ------------------------------------------------------------------ acting

    def act(self, instruction: str) -> Outcome:
        body, s = self._body, self._settings
        task, began = parse_task(instruction), body.now
        body.acts()
        self._before = read_table(self.memory())
        self._turn.here(lambda: self._begin(task))
        ask_at, heard = began + s.ask_every, []
        while body.now - began < s.step_seconds and not _yes(heard):
            chunk = self._chunk(instruction)
            if self._timing.round > 0:
                self._process.stalls.append(max(0.0, body.now - self._timing.ends))
            start = self._timing.take(chunk.execution_horizon, chunk.stamp / 1e9, body.now)
            actions = chunk.values[: chunk.execution_horizon]
            self._turn.here(lambda a=actions, at=start: body.follow(a, at))
            body.served()
            if body.now >= ask_at and len(heard) == heard.count('no'):
                ask_at = body.now + s.ask_every
                self._ask_done(heard)
            self._on_round()
            self._turn.until(self._timing.ends - s.request_ahead * self._dt)
        return Outcome(self._turn.here(lambda: self._finish(task.family, _yes(heard))))

    def _begin(self, task: Task) -> None:
        self._tasks += 1
        self._timing.begin(f'{self._body.name} {self._tasks}')
        self._body.advance()
        truth = self._body.table.truth()
        there = {thing.name for thing in truth.things}
        is_real = {task.target, task.place or task.target} <= there  # else a wrong query
        self._body.judge = Judge(task, truth) if is_real else None

    def _finish(self, family: str, done: bool) -> bool:
        body = self._body
        body.rest()
        body.record.steps.append((family, body.judge is not None and body.judge.done))
        body.judge = None
        self._process.server.finish(body.name, self._timing.task)
        return done

    def _chunk(self, instruction: str) -> ActionChunk:
        """Return the next chunk; repeat the request with a new observation while waiting."""
        while True:
            seen = self._seen = self._turn.here(lambda: self._body.see(instruction))
            now, size = self._body.now, sum(image.nbytes for image in seen.images)
            execution, horizon = self._timing.execution(now), self._process.horizon
            number = self._timing.ask(now)
            request = Request(seen.robot, self._timing.task, number, now, horizon, size, execution)
            chunk = self._turn.wait(
                lambda resume, r=request, o=seen: self._process.ask(r, o, resume)
            )
            if chunk is not None:
                return chunk

    def _ask_done(self, heard: list[str]) -> None:
        """Ask about the last observed frame whether the step is done; the arm keeps moving.

        heard: gets '' now, and 'yes' or 'no' in its place with the answer.
        """
        heard.append('')

        def on_answer(words: str) -> None:
            heard[-1] = 'yes' if words.lower().startswith('yes') else 'no'

        self._turn.here(lambda: self._process.voices.ask(Frame(self._seen), DONE, on_answer))

    # ------------------------------------------------------------------ the rest of a robot

    def mark(self, step: int) -> None:
        self._on_mark()

    def rewind(self) -> None:
        self._on_rewind()

    def on_device(self, kind: str, work: Callable[[], T]) -> T:
        """Run work on the device, and return its result. Raises the error of the work."""
        return on_device(self._turn, self._process, kind, work, self._body.name)


def on_device(turn: Turn, process: Process, kind: str, work: Callable[[], T], client: str) -> T:
    """Run work on the device as `FleetRobot.on_device`, for a turn."""
    promise: Future[T] = turn.wait(
        lambda resume: process.device.call(kind, work, client).add_done_callback(resume)
    )
    return promise.result()


def _yes(heard: list[str]) -> bool:
    return heard[-1:] == ['yes']


def _all(
    ask: Callable[..., None],
    frame: Frame,
    texts: list[str],
    resume: Callable[[object], object],
) -> None:
    """Ask several questions. resume: called with all answers, in the order of the questions."""
    answers: dict[int, str] = {}

    def take(number: int, words: str) -> None:
        answers[number] = words
        if len(answers) == len(texts):
            resume([answers[i] for i in range(len(texts))])

    for number, text in enumerate(texts):
        ask(frame, text, lambda words, n=number: take(n, words))
