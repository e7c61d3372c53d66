"""Whether a task can still be done: what it needs is on the table, in reach and in view.

Knows tasks, where things lie, and how the arm reaches. Does not know cameras: it is told what
they see. Reach is that of `kinematics`, the gripper straight down, as all tasks are done.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from embodied_kv.demo.sim.kinematics import reaches
from embodied_kv.demo.sim.phases import PUSHING
from embodied_kv.demo.sim.tabletop import ObjectTruth, Truth
from embodied_kv.demo.sim.tasks import BEHIND, HOVER, SIDES, Task, have_room

ROOM = {'put': 'in', 'take': 'beside', 'next': 'beside'}


def hindrance(task: Task, truth: Truth, sees: Callable[[np.ndarray], np.ndarray]) -> str:
    """Why nobody could do the task as things are, in words that end a sentence; '' if one could.

    sees: whether points [N, 3] (m) are in view, bool [N]. What the gripper holds is in reach.
    """
    for thing in truth.things:
        if thing.name not in (task.target, task.place):
            continue
        if thing.position[2] < 0:
            return f'the {thing.name} fell off the table'
        reached = thing.name != task.place or task.family == 'put'
        if reached and thing.name != truth.held and not reaches(_points(task, thing)).all():
            return f'the {thing.name} is out of reach'
        if not sees(thing.position[None]).all():
            return f'the {thing.name} is out of view'
    if not have_room([task], truth.things).all():
        return f'there is no room {ROOM[task.family]} the {task.place}'
    return ''


def _points(task: Task, thing: ObjectTruth) -> np.ndarray:
    """Where the gripper has to come, float64 [2, 3]: above, then down."""
    x, y, z = thing.position
    match task.family:
        case 'reach':
            z = HOVER
        case 'push':  # from beside the circle around its footprint
            y -= SIDES[task.side] * (np.hypot(*thing.size[:2]) / 2 + BEHIND)
            z = PUSHING
    return np.array([(x, y, HOVER), (x, y, z)])
