"""What the robot is told and known to do, how a chunk was received, what of it is still to come.

Knows shapes. `control_loop` makes commands; `nodes.common.conversions` sends them, a capsule keeps
what is left over.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FRESH, PREVIOUS, HOLD, STOP = SOURCES = ('fresh', 'previous', 'hold', 'stop')


@dataclass(frozen=True, eq=False)
class Measured:
    """Where the arm was seen: position [joints] at a moment, s on the control loop's clock.

    velocity: [joints], over a while that ended then. recent: the same over a shorter while, where
    that is known. NaN for an output that no driver measures, as an axis of a Cartesian controller,
    and for a velocity that is not known yet.
    """

    position: np.ndarray
    moment: float
    velocity: np.ndarray
    recent: np.ndarray | None = None

    @property
    def surely(self) -> np.ndarray:
        """The velocity [joints] that both whiles agree on; 0 where they do not, or are unknown."""
        recent = self.velocity if self.recent is None else self.recent
        least = np.minimum(np.abs(self.velocity), np.abs(recent)) * np.sign(recent)
        return np.nan_to_num(np.where(self.velocity * recent > 0, least, 0.0))


@dataclass(frozen=True, eq=False)
class Command:
    """A chunk as it is executed, and where its execution stands.

    values: float64 [chunk size, joints]; of a hold or a stop where the arm comes to rest, [1,
    joints]; [0, joints] while that is not known. stamp: ns on the ROS clock of the observation,
    None where the command answers none. first: the first action whose moment has not passed, or
    the last one of those to execute. execution_horizon: H, the actions from the start on that may
    be executed. confidence: float32 [chunk size], or [0] where no denoising is known that made
    them. delay: d, the actions of the newest chunk that had passed when it took over; latency: s
    from its observation until then, NaN where none is known. source: one of SOURCES.
    points, velocities, times: float64 [n, joints] twice and [n]: what a trajectory controller is
    to do instead of what it does, in seconds from when it receives them; the last velocity is
    zero. Empty where nothing changes: what it was sent goes on, or the arm stands.
    """

    values: np.ndarray
    dt: float
    stamp: int | None
    first: int
    execution_horizon: int
    confidence: np.ndarray
    sequence: int
    age: float
    delay: int
    latency: float
    steps: int
    source: str
    deadline_met: bool
    prefill_ms: float
    denoise_ms: float
    points: np.ndarray
    velocities: np.ndarray
    times: np.ndarray


@dataclass(frozen=True, eq=False)
class Setpoint:
    """The command of this moment, for a controller without trajectories.

    values: float64 [joints], of each output its kind: a position or a velocity; NaN for a position
    that is not to be commanded. positions, velocities: both of all; None before anything was
    commanded. age: s since the observation that it answers; inf where there was none.
    """

    values: np.ndarray | None
    positions: np.ndarray | None
    velocities: np.ndarray | None
    source: str
    age: float


@dataclass(frozen=True, eq=False)
class LeftoverActions:
    """What is still to come of a chunk, up to its H: it can be frozen, and begun anew later.

    values: float64 [n, joints], of which the first is due at once. stamp: ns on the ROS clock, of
    the observation that they answer; age: s since then. steps: Euler steps that made them.
    """

    values: np.ndarray
    stamp: int
    age: float
    sequence: int
    steps: int


@dataclass(frozen=True, eq=False)
class TakeOver:
    """How a chunk was received.

    first: its first action whose moment has not passed; the chunk size where all have, or where it
    is older than the one that runs. values: float64 [chunk size, joints], its actions within the
    limits; None where it was refused, and then `reason` says why. blended: the limits kept the
    arm from meeting some action that is executed. clamped: values of those that were outside.
    """

    first: int
    values: np.ndarray | None = None
    blended: bool = False
    clamped: int = 0
    reason: str = ''


@dataclass
class Counters:
    """Since the start: the first four count chunks, clamped values, the rest periods.

    late: chunks that took over later than they were made for.
    """

    takeovers: int = 0
    refused: int = 0
    blended: int = 0
    late: int = 0
    clamped: int = 0
    missed: int = 0
    held: int = 0
    stopped: int = 0
