"""A batch whose robots have deadlines, and wishes of Euler steps, of their own.

Knows the engine's time budget. Does not know who asks. All of it runs on the engine's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from embodied_kv.control.execution_horizon import Policy
from embodied_kv.engine.engine import Engine
from embodied_kv.fleet.protocol import LastExecution
from embodied_kv.serving.batch import KeptRows, Late, serve
from embodied_kv.types import ActionChunk, Observation


@dataclass(frozen=True, eq=False)
class TimedObservation(Observation):
    """An observation with what its client asks for.

    deadline: of its chunk; infinite: none. steps: Euler steps at most; 0: all. horizon: how much
    of the chunk is executed; None: the client decides, and the server expects all of it.
    execution: the newest one of its session, as far as the client reports it.
    """

    steps: int = 0
    horizon: Policy | None = None
    execution: LastExecution | None = None


def serve_in_time(
    engine: Engine,
    frames: Sequence[TimedObservation],
    kept: KeptRows | None = None,
    hand_on: Callable[[TimedObservation, ActionChunk | Exception], None] = lambda *_: None,
) -> list[ActionChunk | Exception]:
    """As `batch.serve`, each by its own deadline: a hasty robot costs the others no Euler step.

    Who has no time left hears `Late`. Those whose plans are alike are one batch, the most urgent
    first. Where its deadline took steps from those who share it, they are tried once more: a
    chunk of fewer steps is theirs only if no time is left for a better one.

    hand_on: told of each result as soon as it stands, while others are still served.
    """
    results: dict[str, ActionChunk | Exception] = {}
    spare: dict[str, ActionChunk] = {}  # of those who are tried once more
    waiting, tried = sorted(frames, key=lambda frame: frame.deadline), False
    while waiting:
        plans = _plans(engine, waiting)
        for frame in tuple(waiting):
            robot = frame.robot
            if plans[robot] <= _steps(spare.get(robot)):
                results[robot] = spare.get(robot) or Late('no time is left for the fewest steps')
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
            hurried = isinstance(result, Late) or 0 < _steps(result) < steps
            if hurried and frame.deadline > urgent.deadline:
                if isinstance(result, ActionChunk):
                    spare[robot] = max(result, spare.get(robot, result), key=_steps)
            else:
                results[robot] = result if _steps(result) else spare.get(robot, result)
                hand_on(frame, results[robot])
                waiting.remove(frame)
    if not tried:
        engine.budget.give_up(len(frames))
    return [results[frame.robot] for frame in frames]


def _steps(result: ActionChunk | Exception | None) -> int:
    """Of a chunk; 0 for none."""
    return result.steps if isinstance(result, ActionChunk) else 0


def _plans(engine: Engine, frames: Sequence[TimedObservation]) -> dict[str, int]:
    """By robot, the Euler steps that end in time once all of them are prefilled; 0: too few."""
    budget, count = engine.budget, len(frames)
    ready = time.monotonic() + budget.latency.estimate('prefill', count)
    most = budget.euler_steps
    return {
        frame.robot: min(budget.steps_before(ready, frame.deadline, count), frame.steps or most)
        for frame in frames
    }
