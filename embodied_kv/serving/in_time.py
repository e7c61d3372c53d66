"""A batch whose robots have deadlines, and wishes of Euler steps, of their own.

Knows the engine's time budget. Does not know who asks. All of it runs on the engine's thread.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from embodied_kv.engine.engine import Engine
from embodied_kv.serving.batch import KeptRows, Late, serve
from embodied_kv.types import ActionChunk, Observation


@dataclass(frozen=True, eq=False)
class TimedObservation(Observation):
    """deadline: of its chunk; infinite: none. steps: Euler steps at most; 0: all."""

    steps: int = 0


def serve_in_time(
    engine: Engine, frames: Sequence[TimedObservation], kept: KeptRows | None = None
) -> list[ActionChunk | Exception]:
    """As `batch.serve`, each by its own deadline: a hasty robot costs the others no Euler step.

    Who has no time left hears `Late`. Those whose plans are alike are one batch, the most urgent
    first; whoever shares it and comes late for the deadline of another is tried once more.
    """
    results: dict[str, ActionChunk | Exception] = {}
    waiting = sorted(frames, key=lambda frame: frame.deadline)
    while waiting:
        plans = _plans(engine, waiting)
        for frame in [frame for frame in waiting if not plans[frame.robot]]:
            results[frame.robot] = Late('no time is left for the fewest Euler steps')
            waiting.remove(frame)
        if not waiting:
            break
        urgent, steps = waiting[0], plans[waiting[0].robot]
        batch = [frame for frame in waiting if plans[frame.robot] == steps]
        with engine.budget.at_most(steps):
            made = _served(engine, batch, urgent.deadline, kept)
        for frame, result in zip(batch, made, strict=True):
            if not isinstance(result, Late) or frame is urgent:
                results[frame.robot] = result
                waiting.remove(frame)
    return [results[frame.robot] for frame in frames]


def _served(
    engine: Engine, frames: Sequence[TimedObservation], deadline: float, kept: KeptRows | None
) -> list[ActionChunk | Exception]:
    """A network that says what is no number, to all of a batch, is no fault of the engine."""
    try:
        return serve(engine, frames, deadline, kept)
    except FloatingPointError as error:
        return [error] * len(frames)


def _plans(engine: Engine, frames: Sequence[TimedObservation]) -> dict[str, int]:
    """By robot, the Euler steps that end in time once all of them are prefilled; 0: too few."""
    budget, count = engine.budget, len(frames)
    ready = time.monotonic() + budget.costs.estimate('prefill', count)
    most = budget.euler_steps
    return {
        frame.robot: min(budget.euler_plan(ready, frame.deadline, count), frame.steps or most)
        for frame in frames
    }
