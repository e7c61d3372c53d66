"""The mission that ends a demo: chosen by how things lie, told in a sentence, judged by the truth.

Knows missions, moments and what is said of a mission's progress. Does not know topics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from embodied_kv.demo.director import SECOND, Told
from embodied_kv.demo.nodes.truth import TrueMoment
from embodied_kv.demo.sim.mission_memory import parse_task, true_table
from embodied_kv.demo.sim.mission_oracle import begin, next_step
from embodied_kv.demo.sim.mission_phrases import say_mission
from embodied_kv.demo.sim.missions import Mission, Part, Which
from embodied_kv.demo.sim.tasks import Judge, Task


def choose_mission(
    moment: TrueMoment, hindrance: Callable[[Task, TrueMoment], str]
) -> Mission | None:
    """Return a mission that the policy can do: one move, and to say what the place then holds.

    A thing goes into an empty place, for the policy puts a second one onto the first. Without an
    empty place a thing goes out of one. hindrance: why a task is impossible at a moment, or ''.
    None where nothing can be moved.
    """
    table = true_table(moment.truth)
    empty = [place for place in table.places if not table.inside(place)]
    moves = [
        *(Part('put', Which(names=(name,)), place) for place in empty for name in table.where),
        *(
            Part('take', Which(names=(name,), place=place))
            for place in table.places
            for name in table.inside(place)
        ),
    ]
    for move in moves:
        (name,), place = move.which.names, move.place or move.which.place
        if not hindrance(Task(move.kind, name, place), moment):
            return Mission((move, Part('say', place=place, about='inside')))
    return None


@dataclass
class LastMission:
    """One mission from the moment it is told on. words: the sentence. steps: as they were told.

    ended: ns, None while it runs. success, message: what the robot says of its end. said: what it
    was asked to say. done, truth: whether all that was to be moved lies where it should when it
    ended, and what would then have been true to say.
    """

    mission: Mission
    words: str
    began: TrueMoment

    def __post_init__(self) -> None:
        self.stamp, self.ended = self.began.stamp, None
        self.steps: list[Told] = []
        self.success = self.done = False
        self.message = self.truth = ''
        self.said: tuple[str, ...] = ()
        self._now, self._before, self._judge = self.began, 0, None

    @classmethod
    def told(cls, mission: Mission, moment: TrueMoment, seed: int) -> LastMission:
        """In words that the seed draws."""
        words = ''.join(say_mission(mission, np.random.default_rng(seed)))
        return cls(mission, words, moment)

    @property
    def right(self) -> bool:
        """Whether it said the truth at last."""
        return bool(self.said) and self.said[-1] == self.truth

    def see(self, moment: TrueMoment) -> None:
        """Takes the next moment."""
        self._now = moment
        if self._judge and self.ended is None:
            self._judge.see(moment.truth)

    def hear(self, stamp: int, step: str, steps: int) -> None:
        """How it stands: the instruction in force, or '', and steps carried out so far."""
        if self.ended is not None:
            return
        if self._judge and (steps > self._before or step != self.steps[-1].instruction):
            self._close(stamp)
        task = parse_task(step)
        if task and self._judge is None:
            self.steps.append(Told(stamp, self._now.scene, task, step))
            self._before, self._judge = steps, Judge(task, self._now.truth)

    def end(self, stamp: int, success: bool, message: str, said: tuple[str, ...]) -> None:
        """It is over, or nobody waits for it any longer."""
        self._close(stamp)
        self.ended, self.success, self.message, self.said = stamp, success, message, said
        table = true_table(self._now.truth)
        *moves, say = self.mission.parts
        goals = [next_step(Mission((part,)), table, begin(table)).kind for part in moves]
        self.done = all(kind == 'done' for kind in goals)
        self.truth = next_step(Mission((say,)), table, begin(table)).words

    def _close(self, stamp: int) -> None:
        """The step in force, if any, is over."""
        if self._judge:
            step = self.steps[-1]
            step.seconds, step.done = (stamp - step.stamp) / SECOND, self._judge.done
            step.wrong, self._judge = self._judge.wrong, None

    def report(self, since_began: Callable[[int], float]) -> dict[str, object]:
        """since_began: of a stamp, in s."""
        return {
            'at': round(since_began(self.stamp), 2),
            'seconds': round((self.ended - self.stamp) / SECOND, 2),
            'told': self.words,
            'steps': [
                {
                    'at': round(since_began(step.stamp), 2),
                    'instruction': step.instruction,
                    'done': step.done,
                    'seconds': round(step.seconds, 2),
                }
                for step in self.steps
            ],
            'success': self.success,
            'message': self.message,
            'done': self.done,
            'said': list(self.said),
            'truth': self.truth,
            'right': self.right,
        }
