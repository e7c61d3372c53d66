"""The share of true subtasks and narrations, compared with those of the expert.

A text describes the frame of its stream, so it is compared with the true state at that stamp.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from embodied_kv.demo.nodes.truth import TrueMoment
from embodied_kv.demo.sim.language import NARRATE, SUBTASK, narrate, say_subtask
from embodied_kv.demo.sim.phases import TableMoment
from embodied_kv.demo.sim.tables import Orders, Tables
from embodied_kv.demo.sim.tasks import Task

SAY = {SUBTASK: say_subtask, NARRATE: narrate}
FRAME = 110_000_000  # ns: a control period with the tolerance of a stamp
KEPT = 900  # moments: half a minute, longer than any stream


@dataclass
class Count:
    """Counts of texts. exact: true at the frame. near: true within one frame of it."""

    exact: int = 0
    near: int = 0
    of: int = 0


class Score:
    """Compares texts with moments. task_at: returns the task in force, or None."""

    def __init__(self, task_at: Callable[[TrueMoment], Task | None]) -> None:
        self._task_at = task_at
        self._moments: deque[TrueMoment] = deque(maxlen=KEPT)
        self._waiting: deque[tuple[int, str, str]] = deque()
        self.counts = {query: Count() for query in SAY}

    def add_moment(self, moment: TrueMoment) -> None:
        """Take a moment, and compare the texts that need it."""
        self._moments.append(moment)
        while self._waiting and self._waiting[0][0] + FRAME <= moment.stamp:
            self._compare(*self._waiting.popleft())

    def add_text(self, stamp: int, query: str, said: str) -> None:
        """Take a complete text about the frame of that stamp."""
        if query in SAY:
            self._waiting.append((stamp, query, said.strip()))

    def report(self) -> dict[str, dict[str, int]]:
        """Return the counts of compared texts."""
        names = {'subtask': self.counts[SUBTASK], 'narration': self.counts[NARRATE]}
        return {
            name: {'exact': count.exact, 'within one frame': count.near, 'of': count.of}
            for name, count in names.items()
        }

    def _compare(self, stamp: int, query: str, said: str) -> None:
        near = [moment for moment in self._moments if abs(moment.stamp - stamp) <= FRAME]
        now = next((moment for moment in near if moment.stamp == stamp), None)
        task = self._task_at(now) if now else None
        if task is None:
            return
        near = [moment for moment in near if self._task_at(moment) is task]
        true = dict(zip([m.stamp for m in near], sentences(query, near, task), strict=True))
        count = self.counts[query]
        count.exact += said == true[stamp]
        count.near += said in true.values()
        count.of += 1


def sentences(query: str, moments: list[TrueMoment], task: Task) -> list[str]:
    """Return the true text at each moment. Raises KeyError for an unknown query."""
    tables = Tables.of([moment.truth for moment in moments])
    names = [[thing.name for thing in moment.truth.things] for moment in moments]
    orders = Orders.of([task] * len(moments), names)
    joints = np.array([moment.joints for moment in moments], np.float64)
    phases = TableMoment(joints, tables, orders).phase()
    say = SAY[query]
    return [say(phase, task, m.truth) for phase, m in zip(phases, moments, strict=True)]
