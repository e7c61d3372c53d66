"""Helpers of the simulator's tests: the expert acts in simulated time."""

from __future__ import annotations

import numpy as np
import pytest

from embodied_kv.demo.sim.phases import Phase
from embodied_kv.demo.sim.rollout import Rollout
from embodied_kv.demo.sim.tables import Orders, Tables
from embodied_kv.demo.sim.tabletop import Tabletop
from embodied_kv.demo.sim.tasks import SECONDS, Judge, Task, draw_task, task_scene
from training.policy.expert import plan

DT = 0.1


class Episode:
    """One task in one scene, in which the expert replans every `stride` periods."""

    def __init__(self, family: str, seed: int, **changes) -> None:
        self.table = Tabletop(task_scene(family, **changes), seed)
        self.rng = np.random.default_rng(seed)
        self.task = draw_task(self.table.objects(), self.rng, family)
        self.rollout = Rollout(self.table)
        self.phases: list[Phase] = []

    def follow(self, task: Task, stride: int = 2, noise: float = 0.0) -> Judge:
        """Follow a task until it is done or its time is over, and return its judge."""
        judge = Judge(task, self.table.truth())
        names = [thing.name for thing in self.table.objects()]
        for period in range(round(SECONDS[task.family] / DT)):
            if period % stride == 0:
                tables = Tables.of([self.table.truth()])
                actions, phase = plan(
                    self.table.state()[None], tables, Orders.of([task], [names]), stride + 1
                )
                self.phases.append(Phase(phase[0]))
                disturbed = actions[0] + noise * self.rng.standard_normal(actions[0].shape)
                disturbed[:, -1] = actions[0, :, -1]
                self.rollout.follow(disturbed, self.rollout.time, DT)
            self.rollout.advance(DT)
            judge.see(self.table.truth())
            if judge.done:
                break
        return judge


@pytest.fixture
def episode():
    opened = []

    def begin(family: str, seed: int, **changes) -> Episode:
        opened.append(Episode(family, seed, **changes))
        return opened[-1]

    yield begin
    for each in opened:
        each.table.close()
