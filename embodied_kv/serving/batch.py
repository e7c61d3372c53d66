"""Inference for a batch of robots, each by its deadline, and the latency of a batch.

All functions with an engine run on its thread.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from embodied_kv.config import ModelConfig
from embodied_kv.control.execution_horizon import Policy
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.prefill import BadObservationError
from embodied_kv.engine.shapes import doubling
from embodied_kv.engine.warmup import blank
from embodied_kv.fleet.profile import Profile
from embodied_kv.fleet.protocol import LastExecution
from embodied_kv.kv.handle import KvHandle, Lease
from embodied_kv.kv.rows import OutOfRowsError
from embodied_kv.types import ActionChunk, Observation

REPEATS = 5  # measurements of each batch size
FLOAT = 4  # bytes


class LateError(TimeoutError):
    """The time left is too short for the minimum number of Euler steps."""


@dataclass(frozen=True, eq=False)
class TimedObservation(Observation):
    """An observation with the limits that its client requests.

    Attributes:
        deadline: When the chunk must be ready, s, steady clock; infinity for no deadline.
        steps: Maximum number of Euler steps; 0 for all.
        horizon: How much of the chunk is executed. None: the client decides, and the server
            assumes all of it.
        execution: The newest execution of its session that the client has reported.
    """

    steps: int = 0
    horizon: Policy | None = None
    execution: LastExecution | None = None


class KeptRows:
    """The newest prefix row of each robot, leased until its next one, for capsules and language.

    At most `most` rows are kept, which leaves enough for a full batch. Beyond that, the row of
    the least recently served robot is dropped.
    """

    def __init__(self, engine: Engine) -> None:
        self.most = max(0, engine.config.rows - engine.config.max_batch_robots)
        self._frames = engine.kv.frames
        self._leases: OrderedDict[str, Lease] = OrderedDict()  # by robot, the newest last

    def keep(self, lease: Lease) -> None:
        """Keep a row in place of the previous one of its robot."""
        robot = lease.handle.robot
        self.drop(robot)
        self._leases[robot] = lease
        while len(self._leases) > self.most:
            self.drop_oldest()

    def newest(self, robot: str) -> KvHandle | None:
        """Return the handle of the robot's row; None if none is kept. From any thread."""
        lease = self._leases.get(robot)
        return lease.handle if lease else None

    def drop(self, robot: str) -> None:
        """Release the row of a robot, if one is kept."""
        lease = self._leases.pop(robot, None)
        if lease is not None:
            lease.release()
            self._frames.retire(lease.handle)

    def drop_oldest(self) -> bool:
        """Release the row of the least recently served robot; return whether there was one."""
        robot = next(iter(self._leases), None)
        if robot is not None:
            self.drop(robot)
        return robot is not None

    def clear(self) -> None:
        for robot in list(self._leases):
            self.drop(robot)


def serve(
    engine: Engine,
    observations: Sequence[Observation],
    deadline: float,
    kept: KeptRows | None = None,
) -> list[ActionChunk | Exception]:
    """Return a chunk or an error for each observation.

    An invalid observation is left out, and the others are served in one batch. If a batch fails
    for another reason, each observation is tried alone, up to the first that is late. Raises the
    error of the engine if no robot could be served.

    Args:
        engine: The engine.
        observations: The batch, with one observation per robot.
        deadline: End of the last Euler step, s, steady clock.
        kept: Keeps the rows; None to free them once the chunks are computed.
    """
    try:
        return _batch(engine, observations, deadline, kept)
    except LateError as late:
        return [late] * len(observations)
    except BadObservationError as bad:
        others = [o for o in observations if o.robot != bad.robot]
        rest = iter(serve(engine, others, deadline, kept) if others else ())
        return [bad if o.robot == bad.robot else next(rest) for o in observations]
    except Exception:
        if len(observations) == 1:
            raise
        results: list[ActionChunk | Exception] = []
        for observation in observations:
            if results and isinstance(results[-1], LateError):
                results.append(results[-1])  # the next one would be even later
                continue
            try:
                results += serve(engine, [observation], deadline, kept)
            except Exception as error:  # of any type: it is the answer to this robot
                results.append(error)
        if all(isinstance(result, Exception) for result in results):
            raise
        return results


def serve_in_time(
    engine: Engine,
    frames: Sequence[TimedObservation],
    kept: KeptRows | None = None,
    hand_on: Callable[[TimedObservation, ActionChunk | Exception], None] = lambda *_: None,
) -> list[ActionChunk | Exception]:
    """Serve each observation by its own deadline, and return as `serve` does.

    An observation without time left gets a LateError. Observations with equal numbers of planned
    Euler steps form one batch, the most urgent first. If the most urgent deadline cut the steps of
    others in the batch, those are served again: a chunk with fewer steps is used only if no time
    is left for a better one.

    Args:
        engine: The engine.
        frames: The batch.
        kept: As in `serve`.
        hand_on: Called with each result once it is final, while others are still computed.
    """
    began, results = time.monotonic(), dict[str, ActionChunk | Exception]()
    spare: dict[str, ActionChunk] = {}  # of observations that are served again
    waiting, tried = sorted(frames, key=lambda frame: frame.deadline), False
    while waiting:
        plans = _plans(engine, waiting)
        for frame in tuple(waiting):
            robot = frame.robot
            if plans[robot] <= _steps(spare.get(robot)):
                results[robot] = spare.get(robot) or LateError(
                    'no time is left for the fewest steps'
                )
                hand_on(frame, results[robot])
                waiting.remove(frame)
        if not waiting:
            break
        urgent, steps, tried = waiting[0], plans[waiting[0].robot], True
        batch = [frame for frame in waiting if plans[frame.robot] == steps]
        with engine.budget.at_most(steps):
            made = serve(engine, batch, urgent.deadline, kept)
        for frame, result in zip(batch, made, strict=True):
            robot = frame.robot
            hurried = isinstance(result, LateError) or 0 < _steps(result) < steps
            if hurried and frame.deadline > urgent.deadline:
                if isinstance(result, ActionChunk):
                    spare[robot] = max(result, spare.get(robot, result), key=_steps)
            else:
                results[robot] = result if _steps(result) else spare.get(robot, result)
                hand_on(frame, results[robot])
                waiting.remove(frame)
    if tried:
        engine.budget.hopeless = 0
    elif any(frame.deadline > began for frame in frames):
        engine.budget.doubt_batch(len(frames))
    return [results[frame.robot] for frame in frames]


def batch_seconds(engine: Engine, repeats: int = REPEATS) -> dict[int, float]:
    """Return the seconds of a batch of 1, 2, 4 ... max_batch_robots robots with all Euler steps.

    Each value is the upper median of `repeats` + 1 runs, of which the first is a warm-up. Values
    never fall with the size, because a faster measurement of a larger batch is noise.
    """
    seconds, least = {}, 0.0
    for size in doubling(engine.config.max_batch_robots):
        frames = [replace(blank(engine), robot=f'warm-up {i}') for i in range(size)]
        took = []
        for number in range(repeats + 1):
            batch = [replace(frame, sequence=number) for frame in frames]
            began = time.monotonic()
            _batch(engine, batch, began + 3600.0)
            took.append(time.monotonic() - began)
        least = seconds[size] = max(least, sorted(took)[len(took) // 2])
        for frame in frames:
            engine.forget(frame.robot)
    return seconds


def profile_of(model: ModelConfig, seconds: dict[int, float]) -> Profile:
    """Return the profile of measured seconds by batch size, for the dispatcher."""
    return Profile(model.name, tuple(seconds), tuple(seconds.values()), chunk_bytes(model))


def chunk_bytes(model: ModelConfig) -> int:
    """Return the bytes of one robot's answer: its actions and the confidence of each."""
    return FLOAT * model.chunk_size * (model.action_dim + 1)


def _batch(
    engine: Engine,
    observations: Sequence[Observation],
    deadline: float,
    kept: KeptRows | None = None,
) -> list[ActionChunk | Exception]:
    handles = _prefilled(engine, observations, kept)
    with ExitStack() as leases:
        held = [leases.enter_context(engine.kv.acquire(handle)) for handle in handles]
        guides = [o.guide for o in observations]
        chunks = engine.denoise(held, [deadline] * len(held), None, guides)
        if not chunks:
            raise LateError('no time was left for the fewest Euler steps')
        if kept is not None:
            leases.pop_all()
            for lease, chunk in zip(held, chunks, strict=True):
                if isinstance(chunk, ActionChunk):
                    kept.keep(lease)
                else:
                    lease.release()
    return [*chunks]


def _prefilled(
    engine: Engine, observations: Sequence[Observation], kept: KeptRows | None
) -> list[KvHandle]:
    """Prefill a batch. Without room, kept rows make room, the least recently served robot first.

    A finite KV budget may hold fewer kept rows than `KeptRows.most`.
    """
    # The rows expire at once: a row lives as long as its lease, so that only `kept` keeps it.
    frames = [replace(o, deadline=-math.inf) for o in observations]
    while True:
        try:
            return engine.prefill(frames)
        except OutOfRowsError:
            if kept is None or not kept.drop_oldest():
                raise


def _steps(result: ActionChunk | Exception | None) -> int:
    return result.steps if isinstance(result, ActionChunk) else 0


def _plans(engine: Engine, frames: Sequence[TimedObservation]) -> dict[str, int]:
    """Return, by robot, the Euler steps that fit after a prefill of all; 0 if too few fit."""
    budget, count = engine.budget, len(frames)
    ready = time.monotonic() + budget.latency.estimate('prefill', count)
    most = budget.euler_steps
    return {
        frame.robot: min(budget.steps_before(ready, frame.deadline, count), frame.steps or most)
        for frame in frames
    }
