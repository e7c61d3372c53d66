"""A batch of robots from observations to chunks, and what a batch costs.

Knows the engine. Does not know who asks, in which order, or how far a chunk is executed. All of
it runs on the engine's thread.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from embodied_kv.config import ModelConfig
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.prefill import BadObservation
from embodied_kv.engine.shapes import doubling
from embodied_kv.engine.warmup import blank
from embodied_kv.fleet.profile import Profile
from embodied_kv.kv.handle import KvHandle, Lease
from embodied_kv.types import ActionChunk, Observation

REPEATS = 5  # of each batch size
FLOAT = 4  # bytes


class Late(TimeoutError):
    """No time is left for the fewest Euler steps; whoever is tried next would be later still."""


class KeptRows:
    """The newest row of each robot, leased until its next one: capsules and language read it.

    There is room for those that a full batch does not need; beyond that, the row of whoever was
    served longest ago gives way.
    """

    def __init__(self, engine: Engine) -> None:
        self.most = max(0, engine.config.rows - engine.config.robots)
        self._frames = engine.kv.frames
        self._leases: OrderedDict[str, Lease] = OrderedDict()  # by robot, the newest last

    def keep(self, lease: Lease) -> None:
        """Instead of its robot's row before."""
        robot = lease.handle.robot
        self.drop(robot)
        self._leases[robot] = lease
        while len(self._leases) > self.most:
            self.drop(next(iter(self._leases)))

    def newest(self, robot: str) -> KvHandle | None:
        """Names the robot's row; None where none is kept. From any thread."""
        lease = self._leases.get(robot)
        return lease.handle if lease else None

    def drop(self, robot: str) -> None:
        """It is the robot's newest no more: the robot has gone, or has another frame elsewhere."""
        lease = self._leases.pop(robot, None)
        if lease is not None:
            lease.release()
            self._frames.retire(lease.handle)

    def clear(self) -> None:
        """All of them."""
        for robot in list(self._leases):
            self.drop(robot)


def serve(
    engine: Engine,
    observations: Sequence[Observation],
    deadline: float,
    kept: KeptRows | None = None,
) -> list[ActionChunk | Exception]:
    """One chunk for each robot, or the error that it is told; the robots differ.

    A bad observation is left out, and the others are served in one batch. Where a batch fails for
    another reason, each is tried alone. Who is late is not tried again. deadline: s, steady clock;
    as many Euler steps as end before it. The rows are kept, or free as soon as the chunks are
    there. Raises the error where it is the engine's: nobody could be served.
    """
    try:
        return _batch(engine, observations, deadline, kept)
    except Late as late:
        return [late] * len(observations)
    except BadObservation as bad:
        return _without(bad, engine, observations, deadline, kept)
    except Exception:
        if len(observations) == 1:
            raise
        results = _each_alone(engine, observations, deadline, kept)
        if all(isinstance(result, Exception) for result in results):
            raise
        return results


def batch_seconds(engine: Engine, repeats: int = REPEATS) -> dict[int, float]:
    """Seconds of a batch of 1, 2, 4 ... engine.robots robots, with all Euler steps.

    The median of so many, after one that warms up; never falling, as a larger batch that happened
    to be quicker was not quicker for its size.
    """
    seconds, least = {}, 0.0
    for size in doubling(engine.config.robots):
        frames = [replace(blank(engine), robot=f'warm-up {i}') for i in range(size)]
        took = sorted(_seconds(engine, frames) for _ in range(repeats + 1))
        least = seconds[size] = max(least, took[len(took) // 2])
    return seconds


def profile_of(model: ModelConfig, seconds: dict[int, float]) -> Profile:
    """What was measured, as the dispatcher places by it. seconds: by batch size."""
    return Profile(model.name, tuple(seconds), tuple(seconds.values()), chunk_bytes(model))


def chunk_bytes(model: ModelConfig) -> int:
    """What one robot's answer weighs: its actions, and the confidence of each."""
    return FLOAT * model.chunk_size * (model.action_dim + 1)


def _seconds(engine: Engine, frames: Sequence[Observation]) -> float:
    began = time.monotonic()
    _batch(engine, frames, began + 3600.0)
    return time.monotonic() - began


def _batch(
    engine: Engine,
    observations: Sequence[Observation],
    deadline: float,
    kept: KeptRows | None = None,
) -> list[ActionChunk | Exception]:
    # Expired once written: a row lives as long as its lease, so nothing but `kept` keeps it.
    handles = engine.prefill([replace(o, deadline=-math.inf) for o in observations])
    with ExitStack() as leases:
        held = [leases.enter_context(engine.kv.acquire(handle)) for handle in handles]
        guides = [o.guide for o in observations]
        chunks = engine.denoise(held, [deadline] * len(held), None, guides)
        if not chunks:
            raise Late('no time was left for the fewest Euler steps')
        if kept is not None:
            leases.pop_all()
            for lease, chunk in zip(held, chunks, strict=True):
                if isinstance(chunk, ActionChunk):
                    kept.keep(lease)
                else:
                    lease.release()
    return chunks


def _without(
    bad: BadObservation,
    engine: Engine,
    observations: Sequence[Observation],
    deadline: float,
    kept: KeptRows | None,
) -> list[ActionChunk | Exception]:
    """Of the robot at fault its error; of the others what comes of them in one batch."""
    others = [o for o in observations if o.robot != bad.robot]
    results = iter(serve(engine, others, deadline, kept) if others else ())
    return [bad if o.robot == bad.robot else next(results) for o in observations]


def _each_alone(
    engine: Engine, observations: Sequence[Observation], deadline: float, kept: KeptRows | None
) -> list[ActionChunk | Exception]:
    """Of each its chunk or its own error; behind the first that is late nobody is tried."""
    results: list[ActionChunk | Exception] = []
    for observation in observations:
        if results and isinstance(results[-1], Late):
            results.append(results[-1])
            continue
        try:
            results += serve(engine, [observation], deadline, kept)
        except Exception as error:  # whatever it is, it is this robot's answer
            results.append(error)
    return results
