"""What the robot is told in one control period, and what of it is still to come.

`control_loop` makes both; `nodes.common.conversions` sends the one, a capsule keeps the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Command:
    """A chunk as it is executed, and where its execution stands.

    values: float64 [chunk size, joints]; [0, joints] while the robot's position is not known.
    stamp: ns on the ROS clock of the observation, None where the command answers none.
    first: the first action whose moment has not passed, or the last one of those to execute.
    execution_horizon: H, the actions from the start on that may be executed; points ends with the
    last. confidence: float32 [chunk size], or [0] where no denoising is known that made them.
    source: one of `trajectory_executor.SOURCES`.
    points, times: float64 [n, joints] and [n]: what is still to come, in seconds from now.
    """

    values: np.ndarray
    dt: float
    stamp: int | None
    first: int
    execution_horizon: int
    confidence: np.ndarray
    sequence: int
    age: float
    steps: int
    source: str
    deadline_met: bool
    prefill_ms: float
    denoise_ms: float
    points: np.ndarray
    times: np.ndarray


@dataclass(frozen=True, eq=False)
class Leftover:
    """What is still to come of a chunk, up to its H: it can be frozen, and begun anew later.

    values: float64 [n, joints], of which the first is due at once. stamp: ns on the ROS clock, of
    the observation that they answer; age: s since then. steps: Euler steps that made them.
    """

    values: np.ndarray
    stamp: int
    age: float
    sequence: int
    steps: int
