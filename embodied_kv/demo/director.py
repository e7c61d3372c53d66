"""The director gives the robot tasks, judges each by the true state, and asks questions.

Its outputs are the callbacks `tell`, `ask` and `reset`. Times are those of the stamps, in ns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from embodied_kv.demo.domain import DONE
from embodied_kv.demo.nodes.truth import TrueMoment
from embodied_kv.demo.sim.language import SCENE_QUESTIONS, SUBTASK
from embodied_kv.demo.sim.tasks import PHRASES, SECONDS, STEADY, Judge, Task, draw_task

ORDER = ('pick', 'put', 'push', 'reach')  # order of the families, repeated
SECOND = 1_000_000_000  # ns
PERIOD = 0.085 * SECOND  # between two evaluated moments: about a control period
HOLD = 1.0 * SECOND  # shortest time for which a completed task stays in force
REPORT = 4.0 * SECOND  # longest wait after HOLD until the policy reports the end of the task
SETTLE = 0.5 * SECOND  # after a reset, until the robot acts on the new scene
HEARD = 0.15 * SECOND  # after which all frames of the robot have the instruction
ASK_EVERY = 4.0 * SECOND
PATIENCE = 3.0 * SECOND  # before a reset is requested again
TRIES = 8  # draws of a suitable task


@dataclass
class GivenTask:
    """A task that the robot received. done: None until it ends. seconds: its duration so far.

    reported: whether the policy has reported its end; the memory then records it as finished.
    replaced: why the task became impossible, else ''; a replaced task is neither done nor failed.
    """

    stamp: int
    scene: int
    task: Task
    instruction: str
    done: bool | None = None
    wrong: bool = False
    seconds: float = 0.0
    replaced: str = ''
    reported: bool = False

    @property
    def failed(self) -> bool:
        """Whether the time limit passed, although the task was possible."""
        return self.done is False and not self.replaced


@dataclass
class SceneQuestion:
    """A question and its true answer at that time.

    stream: number of the answer's stream, 0 until the service returns it. refused: the reason.
    """

    stamp: int
    text: str
    truth: str
    stream: int = 0
    refused: str = ''

    def is_right(self, answer: str) -> bool:
        """Return whether the answer is true."""
        return answer.strip() == self.truth


class Director:
    """Draws tasks from the true state, and records their results.

    A task that is impossible for STEADY moments is replaced: by one of its family, else of
    another, else in a new scene.

    Args:
        seed: Of tasks, phrases and questions.
        tell: Takes an instruction.
        ask: Takes a SceneQuestion.
        reset: Requests a new scene.
        hindrance: Returns why a task is impossible at a moment, or ''.
        fresh: A new scene for each task; else only where the next family has no task.
    """

    def __init__(
        self,
        seed: int,
        *,
        tell: Callable[[str], object],
        ask: Callable[[SceneQuestion], object],
        reset: Callable[[], object],
        hindrance: Callable[[Task, TrueMoment], str],
        fresh: bool = False,
    ) -> None:
        self._rng = np.random.default_rng(seed)
        self._tell, self._ask, self._reset, self._fresh = tell, ask, reset, fresh
        self._hindrance = hindrance
        self.told: list[GivenTask] = []
        self.questions: list[SceneQuestion] = []
        self.current: GivenTask | None = None
        self._scene: int | None = None
        self._spent: int | None = None  # the scene that gets no further task
        self._hindered = 0  # successive moments at which the task was impossible
        self._closing = self.is_finished = False
        self._next_moment = self._free = self._reset_again = self._next_question = 0.0  # ns
        self._ended = math.inf  # ns

    @property
    def judged(self) -> list[GivenTask]:
        """Return the tasks that ended: done, failed or replaced."""
        return [told for told in self.told if told.done is not None]

    def add_moment(self, moment: TrueMoment) -> None:
        """Take a moment; one in each control period is evaluated."""
        if moment.stamp < self._next_moment or moment.stamp >= self._ended:
            return
        self._next_moment = moment.stamp + PERIOD
        if moment.scene != self._scene:
            self._enter(moment)
        if self.current is not None:
            self._watch(self.current, moment)
        elif moment.stamp >= self._free and not self._awaits_report(moment):
            self.is_finished = self._closing
            if not self.is_finished:
                self._go_on(moment)
        if self.current is not None and moment.stamp >= self._next_question:
            self._question(moment)

    def add_text(self, stamp: int, query: str, text: str) -> None:
        """Take an answer of the policy about the frame of a stamp."""
        if query == SUBTASK and text == DONE:
            before = (told for told in reversed(self.told) if told.stamp + HEARD <= stamp)
            if told := next(before, None):
                told.reported = True

    def close(self) -> None:
        """Give no further task; `is_finished` is set once the task in force has ended."""
        self._closing = True

    def end(self, stamp: int) -> None:
        """Stop giving, asking and judging from this stamp on."""
        self.current, self._ended = None, stamp

    def task_at(self, moment: TrueMoment) -> Task | None:
        """Return the task in force at a moment, or None where it is uncertain."""
        if moment.stamp >= self._ended:
            return None
        before = (told for told in reversed(self.told) if told.stamp <= moment.stamp)
        told = next(before, None)
        if told is None or told.scene != moment.scene or moment.stamp < told.stamp + HEARD:
            return None
        return told.task

    def _enter(self, moment: TrueMoment) -> None:
        """Enter a new scene, and drop the task of the last one."""
        if self._scene is None:
            self._spent = moment.scene if self._fresh else None
            self._next_question = moment.stamp + ASK_EVERY / 2
        else:
            self._free = moment.stamp + SETTLE
        self._scene, self.current, self._reset_again = moment.scene, None, 0.0

    def _watch(self, told: GivenTask, moment: TrueMoment) -> None:
        self._judge.see(moment.truth)
        told.seconds = (moment.stamp - told.stamp) / SECOND
        told.wrong = self._judge.wrong
        hindrance = self._hindrance(told.task, moment)
        self._hindered = self._hindered + 1 if hindrance else 0
        impossible = self._hindered >= STEADY
        if self._judge.done or impossible or told.seconds >= SECONDS[told.task.family]:
            told.done, self.current = self._judge.done, None
            told.replaced = hindrance if impossible and not told.done else ''
            self._free = moment.stamp + (HOLD if told.done else 0)
            self._spent = moment.scene if self._fresh else None

    def _awaits_report(self, moment: TrueMoment) -> bool:
        """Return whether the policy may still report the end of the last task, in its scene."""
        last = self.told[-1] if self.told else None
        if last is None or not last.done or last.reported:
            return False
        return last.scene == moment.scene and moment.stamp < self._free + REPORT

    def _go_on(self, moment: TrueMoment) -> None:
        """Give the next task, or request a new scene."""
        if moment.scene != self._spent and (task := self._draw(moment)):
            number = int(self._rng.integers(2 * len(PHRASES[task.family])))
            self.current = GivenTask(moment.stamp, moment.scene, task, task.phrase(number))
            self.told.append(self.current)
            self._judge, self._hindered = Judge(task, moment.truth), 0
            self._tell(self.current.instruction)
            return
        self._spent = moment.scene
        if moment.stamp >= self._reset_again:
            self._reset_again = moment.stamp + PATIENCE
            self._reset()

    def _draw(self, moment: TrueMoment) -> Task | None:
        """Return a task of the next family, or of any after a replaced one; None if impossible."""
        turn = sum(not told.replaced for told in self.told) % len(ORDER)
        families = ORDER[turn:] + ORDER[:turn]
        replacing = self.told and self.told[-1].replaced
        for family in families if replacing else families[:1]:
            for _ in range(TRIES):
                task = draw_task(moment.truth.things, self._rng, family)
                if task and self._is_suitable(task, moment):
                    return task
        return None

    def _is_suitable(self, task: Task, moment: TrueMoment) -> bool:
        """Return whether the task is possible, and does not succeed without any motion."""
        judge = Judge(task, moment.truth)
        for _ in range(STEADY):
            judge.see(moment.truth)
        return not (judge.done or judge.wrong or self._hindrance(task, moment))

    def _question(self, moment: TrueMoment) -> None:
        self._next_question = moment.stamp + ASK_EVERY
        kinds = list(SCENE_QUESTIONS.values())
        for i in self._rng.permutation(len(kinds)):
            if pair := kinds[i](moment.truth, self._rng):
                self.questions.append(SceneQuestion(moment.stamp, *pair))
                self._ask(self.questions[-1])
                return
