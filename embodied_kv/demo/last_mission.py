"""The mission at the end of a demo: chosen from the true scene and judged by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from embodied_kv.demo.director import SECOND, GivenTask
from embodied_kv.demo.nodes.truth import TrueMoment
from embodied_kv.demo.sim.language import in_or_on
from embodied_kv.demo.sim.table_memory import TABLE, KnownTable, parse_task, true_table
from embodied_kv.demo.sim.tasks import Judge, Task, off_the


@dataclass(frozen=True)
class Errand:
    """Things that go into `place` ('put') or from there onto the table ('take'), and a report.

    before: a thing that is taken out of `place` before, or ''.
    """

    family: str
    names: tuple[str, ...]
    place: str
    before: str = ''

    @property
    def words(self) -> str:
        """Return the sentence, in words that the planner was trained with (`training.planner`)."""
        at = in_or_on(self.place)
        moves = [self._move(self.family, self.names)]
        if self.before:
            moves.insert(0, self._move('take', (self.before,)))
        return ', then '.join((*moves, f'say what is {at} the {self.place}'))

    def _move(self, family: str, names: tuple[str, ...]) -> str:
        things, at = ' and '.join(f'the {name}' for name in names), in_or_on(self.place)
        to = off_the(self.place) if family == 'take' else 'into' if at == 'in' else 'on'
        return f'{family} {things} {to} the {self.place}'

    def is_done(self, table: KnownTable) -> bool:
        """Return whether everything is where it should be."""
        goal = self.place if self.family == 'put' else TABLE
        goals = dict.fromkeys(self.names, goal) | ({self.before: TABLE} if self.before else {})
        return all(table.where.get(name) == goal for name, goal in goals.items())


def choose_mission(
    moment: TrueMoment, hindrance: Callable[[Task, TrueMoment], str]
) -> Errand | None:
    """Return a mission that the policy can execute, or None where it can move nothing.

    A thing goes into an empty place, because the policy puts a second thing onto the first. Where
    no place is empty, the one thing in a place is taken out before, or it alone is taken out.

    Args:
        moment: The true scene.
        hindrance: Returns why a task is impossible at a moment, or ''.
    """
    table = true_table(moment.truth)

    def can(family: str, name: str, place: str) -> bool:
        return not hindrance(Task(family, name, place), moment)

    lying = [name for name in table.where if table.where[name] == TABLE]
    empty = [place for place in table.places if not table.inside(place)]
    inside = [(p, n) for p in table.places for n in table.inside(p) if can('take', n, p)]
    alone = [(place, name) for place, name in inside if len(table.inside(place)) == 1]
    errands = [
        *(Errand('put', (n,), p) for p in empty for n in table.where if can('put', n, p)),
        *(
            Errand('put', (n,), p, before)
            for p, before in alone
            for n in lying
            if can('put', n, p)
        ),
        *(Errand('take', (name,), place) for place, name in inside),
    ]
    return errands[0] if errands else None


@dataclass
class LastMission:
    """One mission, from its start to its end.

    steps: the steps in order. ended: ns, None while it runs. success, message, said: result and
    reports of the robot. done: whether all things were at their goal at the end. truth: the
    correct report at the end.
    """

    errand: Errand
    began: TrueMoment

    def __post_init__(self) -> None:
        self.stamp = self.began.stamp
        self.ended: int | None = None
        self.steps: list[GivenTask] = []
        self.success = self.done = False
        self.message = self.truth = ''
        self.said: tuple[str, ...] = ()
        self._now, self._before = self.began, 0
        self._judge: Judge | None = None

    @property
    def right(self) -> bool:
        """Whether the last report is true."""
        return bool(self.said) and self.said[-1] == self.truth

    def add_moment(self, moment: TrueMoment) -> None:
        self._now = moment
        if self._judge and self.ended is None:
            self._judge.see(moment.truth)

    def set_progress(self, stamp: int, step: str, steps: int) -> None:
        """Take the progress: the instruction in force, or '', and the number of steps so far."""
        if self.ended is not None:
            return
        if self._judge and (steps > self._before or step != self.steps[-1].instruction):
            self._close(stamp)
        task = parse_task(step)
        if task and self._judge is None:
            self.steps.append(GivenTask(stamp, self._now.scene, task, step))
            self._before, self._judge = steps, Judge(task, self._now.truth)

    def end(self, stamp: int, success: bool, message: str, said: tuple[str, ...]) -> None:
        """Take the result, and judge it by the present scene."""
        self._close(stamp)
        self.ended, self.success, self.message, self.said = stamp, success, message, said
        table, place = true_table(self._now.truth), self.errand.place
        self.done = self.errand.is_done(table)
        self.truth = f'the {place} holds {table.holds(place)}'

    def _close(self, stamp: int) -> None:
        """End the step in force, if any."""
        if self._judge:
            step = self.steps[-1]
            step.seconds, step.done = (stamp - step.stamp) / SECOND, self._judge.done
            step.wrong, self._judge = self._judge.wrong, None

    def report(self, since_began: Callable[[int], float]) -> dict[str, object]:
        """Return the entry of report.json. since_began: converts a stamp to s of the run."""
        ended = self._now.stamp if self.ended is None else self.ended
        return {
            'at': round(since_began(self.stamp), 2),
            'seconds': round((ended - self.stamp) / SECOND, 2),
            'told': self.errand.words,
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
