"""Situations that the current frame does not determine: a past that the expert plays, then a task.

The moments of the past that a memory keeps come with their images, states, instructions and true
text. `guesses` has the goals that are possible without these moments, hence the level of chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from embodied_kv.demo.sim.covers import draw_covers, hidden_tasks
from embodied_kv.demo.sim.language import narrate
from embodied_kv.demo.sim.phases import Phase
from embodied_kv.demo.sim.rollout import Rollout
from embodied_kv.demo.sim.scene import CAMERAS
from embodied_kv.demo.sim.tables import Orders, Tables
from embodied_kv.demo.sim.tabletop import Tabletop, Truth
from embodied_kv.demo.sim.tasks import (
    AWAY,
    NOWHERE,
    PHRASES,
    RETURNED,
    SECONDS,
    Judge,
    Task,
    can_be_taken,
    distances,
    draw_task,
    hindrance,
    lies_on_the_table,
)
from training.evaluate.cases import Moment
from training.policy.expert import plan
from training.policy.memory import KeepRule, placements

T = TypeVar('T')
BY_ROBOT, BY_HAND = ('put', 'next'), 'hand'  # how a thing is moved before it is returned
BETWEEN = ('pick', 'put', 'push', 'take', 'next')  # families of the task after a reach


class Past:
    """The earlier part of an episode, which the expert plays on a table.

    dt: s of a control period. between: tasks of `return` and `sequence` that it plays in addition,
    last and with other things. moments: those that a memory keeps, in order.
    """

    def __init__(
        self, table: Tabletop, dt: float, rng: np.random.Generator, between: int = 0
    ) -> None:
        self.moments: list[Moment] = []
        self._between = between
        self._table, self._dt, self._rng = table, dt, rng
        self._rollout, self._rule, self._home = Rollout(table), KeepRule(), table.state()
        self._names = [thing.name for thing in table.objects()]

    def follow(self, task: Task) -> bool:
        """Let the expert do a task; return whether it did it in time."""
        judge, words = Judge(task, self._table.truth()), self._phrase(task)
        orders = Orders.of([task], [self._names])
        most = round(SECONDS[task.family] / self._dt)
        for period in range(most):
            truth, state = self._table.truth(), self._table.state()
            actions, phases = plan(state[None], Tables.of([truth]), orders, chunk_size=2)
            is_last = (judge.done and phases[0] == Phase.HOLD) or period == most - 1
            if self._rule.keeps(self._rollout.time, is_last):
                images = self._table.render()
                self.moments.append(
                    Moment(
                        self._rollout.time,
                        tuple(images[name] for name in CAMERAS),
                        state,
                        words,
                        narrate(phases[0], task, truth),
                    )
                )
            if is_last:
                break
            self._rollout.follow(actions[0], self._rollout.time, self._dt)
            self._rollout.advance(self._dt)
            judge.see(self._table.truth())
        return judge.done

    def _phrase(self, task: Task) -> str:
        return task.phrase(int(self._rng.integers(2 * len(PHRASES[task.family]))))

    def rest(self) -> None:
        """Set the arm to its start, at rest."""
        self._table.arrange(self._home, self._table.poses())

    def move(self, name: str, spot: tuple[float, float]) -> None:
        """Move a thing by hand: it stands upright on the table at x, y (m), and the arm rests."""
        index = self._names.index(name)
        poses, height = self._table.poses(), self._table.objects()[index].size[2]
        poses[index] = *spot, height / 2, 1, 0, 0, 0
        self._table.arrange(self._table.state(), poses)

    def lead_to(self, family: str) -> Task | None:
        """Play a past for a task of MEMORY_FAMILIES and return the task, or None."""
        lead = {'return': self._return, 'hidden': self._hidden, 'sequence': self._sequence}
        task = lead[family]()
        if task is None or hindrance(task, self._table.truth(), self._table.sees):
            return None
        return task

    def _return(self) -> Task | None:
        """Move a thing, by the robot or by hand, from where it lay on the table.

        Its earlier position does not depend on the present one: a push would keep its x.
        """
        things = self._table.objects()
        way = any_of((*BY_ROBOT, BY_HAND), self._rng)
        task = self._draw('reach' if way == BY_HAND else way)
        lay = {t.name: t for t in things if can_be_taken(t) and lies_on_the_table(t, things)}
        if task is None or task.target not in lay or not self.follow(task):
            return None
        moved = lay[task.target]
        if way == BY_HAND:
            moved = any_of([*lay.values()], self._rng)
            spots = placements(moved.name, self._table.truth())
            if not spots:
                return None
            self.move(moved.name, any_of(spots, self._rng))
        self._distract(moved.name)
        x, y, _ = moved.position.tolist()
        now = next(t for t in self._table.objects() if t.name == moved.name)
        task = Task('return', moved.name, spot=(x, y))
        return task if distances(now.position, (x, y)) >= AWAY else None

    def _hidden(self) -> Task | None:
        """Reach a thing; then the arm rests at its start, and covers are put on the table."""
        task = self._draw('reach')
        if task is None or not self.follow(task):
            return None
        self.rest()
        covers = draw_covers(self._table.objects(), self._rng)
        if covers is None:
            return None
        self._table.cover(covers)
        return any_of(hidden_tasks(self._table.truth()), self._rng)

    def _sequence(self) -> Task | None:
        """Reach a thing, then do another task, which does not depend on it."""
        reached = self._draw('reach')
        if reached is None or not self.follow(reached):
            return None
        between = self._draw(any_of(BETWEEN, self._rng))
        if between is None:
            return None
        self.follow(between)
        self._distract(reached.target)
        task = Task('sequence', reached.target)
        return task if task in guesses(task, self._table.truth()) else None

    def _distract(self, name: str) -> None:
        """Play further tasks, which do not move the thing."""
        for _ in range(self._between):
            task = self._draw(any_of(BETWEEN, self._rng))
            if task is not None and task.target != name:
                self.follow(task)

    def _draw(self, family: str) -> Task | None:
        return draw_task(self._table.objects(), self._rng, family)


def guesses(task: Task, truth: Truth) -> list[Task]:
    """Return the tasks that the instruction and the present state allow."""
    match task.family:
        case 'return':
            return [replace(task, spot=spot) for spot in placements(task.target, truth)]
        case 'hidden':
            return [replace(task, spot=tuple(cover.tolist())) for cover in truth.covers]
    return [replace(task, target=thing.name) for thing in truth.things if can_be_taken(thing)]


def chance(task: Task, truth: Truth) -> float:
    """Return the probability that a guess out of `guesses` succeeds.

    It is 1/C for C covers, 1/N for N objects in reach, and the share of the free spots that are
    close enough to the earlier position of a thing to be returned.
    """
    options = guesses(task, truth)
    if task.family == 'return':
        spots = np.array([guess.spot for guess in options])
        return float((distances(spots, task.spot or NOWHERE) < RETURNED).mean())
    return options.count(task) / len(options)


def any_of(options: Sequence[T], rng: np.random.Generator) -> T:
    """Return a random option."""
    return options[int(rng.integers(len(options)))]
