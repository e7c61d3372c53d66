"""Tells the robot one task after the other, judges each by the truth, and asks about the scene.

Knows tasks, questions and moments. Does not know topics, or who robot and simulator are: what it
wants goes out through `tell`, `ask` and `reset`, and what hinders a task it is told. Its time is
that of the moments' stamps, in ns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from embodied_kv.demo.nodes.truth import TrueMoment
from embodied_kv.demo.sim.language import SCENE_QUESTIONS
from embodied_kv.demo.sim.tasks import PHRASES, SECONDS, STEADY, Judge, Task, draw_task

ORDER = ('pick', 'put', 'push', 'reach')  # of families, over and over
SECOND = 1_000_000_000  # ns
PERIOD = 0.085 * SECOND  # between two looks: the nearest moment to a control period
HOLD = 1.0 * SECOND  # for which a task that is done stays in force
SETTLE = 0.5 * SECOND  # after a reset, until the robot acts on pictures of the new scene
HEARD = 0.15 * SECOND  # after which an instruction is surely in the robot's frames
ASK_EVERY = 4.0 * SECOND
PATIENCE = 3.0 * SECOND  # with a reset, before it is asked for again
TRIES = 8  # draws of a task that is worth telling


@dataclass
class Told:
    """A task that was told. done: None until it is over. seconds: it took, or lasts.

    replaced: why nobody could do it any more, '' otherwise; then it is not done, but not failed.
    """

    stamp: int
    scene: int
    task: Task
    instruction: str
    done: bool | None = None
    wrong: bool = False
    seconds: float = 0.0
    replaced: str = ''

    @property
    def failed(self) -> bool:
        """Whether its time passed, and it could have been done."""
        return self.done is False and not self.replaced


@dataclass
class SceneQuestion:
    """A question, and its true answer when it was asked.

    stream: the number of the answer's, 0 until the service has told it. refused: why not.
    """

    stamp: int
    text: str
    truth: str
    stream: int = 0
    refused: str = ''

    def is_right(self, answer: str) -> bool:
        """Whether that is the truth."""
        return answer.strip() == self.truth


class Director:
    """Gives out tasks, drawn from where things lie, and keeps what became of them.

    seed: of tasks, phrases and questions. tell, ask, reset: take an instruction, a Question, and
    nothing. hindrance: why nobody could do a task at a moment, or ''. fresh: a new scene for every
    task; else where the family in turn has none in the old. A task that something hinders for
    STEADY looks is replaced: by one of its family, else of another, else in a new scene.
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
        self.told: list[Told] = []
        self.questions: list[SceneQuestion] = []
        self.current: Told | None = None
        self._scene: int | None = None
        self._spent: int | None = None  # the scene in which no more is told
        self._hindered = 0  # looks in a row at which the current task could not be done
        self._look = self._free = self._reset_again = self._next_question = 0.0  # ns
        self._ended = math.inf  # ns

    @property
    def judged(self) -> list[Told]:
        """The tasks that are over: done, failed or replaced."""
        return [told for told in self.told if told.done is not None]

    def see(self, moment: TrueMoment) -> None:
        """Takes a moment; looks at one in each control period."""
        if moment.stamp < self._look or moment.stamp >= self._ended:
            return
        self._look = moment.stamp + PERIOD
        if moment.scene != self._scene:
            self._enter(moment)
        if self.current is not None:
            self._watch(self.current, moment)
        elif moment.stamp >= self._free:
            self._go_on(moment)
        if self.current is not None and moment.stamp >= self._next_question:
            self._question(moment)

    def end(self, stamp: int) -> None:
        """From then on nothing is told, asked or judged: what is in force is somebody else's."""
        self.current, self._ended = None, stamp

    def task_at(self, moment: TrueMoment) -> Task | None:
        """The task in force then; None where that is not certain."""
        if moment.stamp >= self._ended:
            return None
        before = (told for told in reversed(self.told) if told.stamp <= moment.stamp)
        told = next(before, None)
        if told is None or told.scene != moment.scene or moment.stamp < told.stamp + HEARD:
            return None
        return told.task

    def _enter(self, moment: TrueMoment) -> None:
        """A new scene: what was told in the last one has no meaning here."""
        if self._scene is None:
            self._spent = moment.scene if self._fresh else None
            self._next_question = moment.stamp + ASK_EVERY / 2
        else:
            self._free = moment.stamp + SETTLE
        self._scene, self.current, self._reset_again = moment.scene, None, 0.0

    def _watch(self, told: Told, moment: TrueMoment) -> None:
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

    def _go_on(self, moment: TrueMoment) -> None:
        """Tell the next task, or ask for a scene that has one."""
        if moment.scene != self._spent and (task := self._draw(moment)):
            number = int(self._rng.integers(2 * len(PHRASES[task.family])))
            self.current = Told(moment.stamp, moment.scene, task, task.phrase(number))
            self.told.append(self.current)
            self._judge, self._hindered = Judge(task, moment.truth), 0
            self._tell(self.current.instruction)
            return
        self._spent = moment.scene
        if moment.stamp >= self._reset_again:
            self._reset_again = moment.stamp + PATIENCE
            self._reset()

    def _draw(self, moment: TrueMoment) -> Task | None:
        """A task of the family whose turn it is, or None; of any, in place of a replaced one."""
        turn = sum(not told.replaced for told in self.told) % len(ORDER)
        families = ORDER[turn:] + ORDER[:turn]
        replacing = self.told and self.told[-1].replaced
        for family in families if replacing else families[:1]:
            for _ in range(TRIES):
                task = draw_task(moment.truth.things, self._rng, family)
                if task and self._is_worth_telling(task, moment):
                    return task
        return None

    def _is_worth_telling(self, task: Task, moment: TrueMoment) -> bool:
        """Whether it can be done, and a judge would not call it over if nothing moved at all."""
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
