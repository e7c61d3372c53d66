"""A short run in simulated time, recorded as by the demo.

The expert acts and names its subtasks.
"""

import numpy as np

from embodied_kv.demo.director import SECOND, GivenTask
from embodied_kv.demo.nodes.truth import TrueMoment
from embodied_kv.demo.recording import Decision, Recording, Sentence
from embodied_kv.demo.sim.language import SUBTASK, say_subtask
from embodied_kv.demo.sim.rollout import Rollout
from embodied_kv.demo.sim.tables import Orders, Tables
from embodied_kv.demo.sim.tabletop import Tabletop
from embodied_kv.demo.sim.tasks import Task, task_scene
from training.policy.expert import plan

SEED = 1_000_001
START, DT = 5 * SECOND, 0.1


def play(seconds: float) -> tuple[Recording, GivenTask]:
    """Return the recording and its only task, which is still in force."""
    recording = Recording(longest=60.0)
    with Tabletop(task_scene('put'), SEED) as table:
        names = [thing.name for thing in table.objects()]
        task = Task('pick', next(name for name in names if name.endswith('cylinder')))
        rollout, order = Rollout(table), Orders.of([task], [names])
        for i in range(round(seconds / DT)):
            stamp, truth = START + round(i * DT * SECOND), table.truth()
            recording.add_moment(TrueMoment(stamp, SEED, table.state(), truth, table.poses()))
            actions, phase = plan(table.state()[None], Tables.of([truth]), order, 10)
            recording.decide(decision(stamp, table.render(), table.state(), actions[0]))
            words = say_subtask(phase[0], task, truth)
            recording.add_text(Sentence(stamp + SECOND // 20, SUBTASK, words))
            rollout.follow(actions[0], rollout.time, DT)
            rollout.advance(DT)
    return recording, GivenTask(START, SEED, task, task.phrase(0), seconds=seconds)


def decision(stamp: int, seen: dict, joints: np.ndarray, actions: np.ndarray) -> Decision:
    """Return a decision that was ready 60 ms after its frame."""
    return Decision(stamp, stamp + 60_000_000, seen, joints, actions, 1, DT, 'a note')
