"""A short deadline costs other robots no Euler step, however long the prefill takes."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from embodied_kv.engine.time_budget import STARVED, LatencyEstimator, TimeBudget
from embodied_kv.serving import batch
from embodied_kv.serving.batch import LateError
from embodied_kv.types import ActionChunk

PREFILL = 10.0  # s; the budget has no estimate of it
STEP = 1.0  # s


class SlowEngine:
    """An engine with its own clock and budget: a prefill, then as many Euler steps as fit."""

    def __init__(self):
        self.now, self.batches, self.handed = 0.0, [], {}
        costs = LatencyEstimator()
        for size in (1, 2, 4):
            for _ in range(9):
                costs.observe('denoise_step', STEP, size)
        self.forgotten = []
        costs.forget_oldest = lambda kind, size: self.forgotten.append(kind)
        self.budget = TimeBudget(
            costs, period=1e4, margin=0.0, euler_steps=4, min_euler_steps=2, allowed=STEP
        )

    def monotonic(self):
        return self.now

    def serve(self, engine, frames, deadline, kept):
        self.now += PREFILL
        self.batches.append([frame.robot for frame in frames])
        steps = self.budget.euler_plan(self.now, deadline, len(frames))
        if not steps:
            return [LateError('late')] * len(frames)
        self.now += steps * STEP
        return [ActionChunk(np.zeros((1, 1)), 0.1, 0, deadline, 0, steps, 0.0, 0.0)] * len(frames)


@pytest.fixture
def served(monkeypatch):
    def serve(deadlines, most=0, repeats=1):
        slow = SlowEngine()
        monkeypatch.setattr(batch, 'time', slow)
        monkeypatch.setattr(batch, 'serve', slow.serve)
        frames = [
            batch.TimedObservation((), np.zeros(1), 'go', 0, deadline, 0, robot, steps=most)
            for robot, deadline in deadlines.items()
        ]

        def hand_on(frame, result):
            slow.handed[frame.robot] = slow.now

        engine = SimpleNamespace(budget=slow.budget)
        for _ in range(repeats):
            made = batch.serve_in_time(engine, frames, None, hand_on)
        steps = [getattr(one, 'steps', 0) for one in made]
        return dict(zip(deadlines, steps, strict=True)), slow

    return serve


def test_all_steps_next_to_a_request_with_few_steps(served):
    steps, slow = served({'hasty': 12 * STEP, 'calm': math.inf})
    assert steps == {'hasty': 2, 'calm': 4}
    assert slow.batches == [['hasty', 'calm'], ['calm']]
    assert slow.handed == {'hasty': PREFILL + 2 * STEP, 'calm': 2 * PREFILL + 6 * STEP}


def test_all_steps_next_to_a_late_request(served):
    assert served({'hasty': 11 * STEP, 'calm': math.inf})[0] == {'hasty': 0, 'calm': 4}


def test_a_chunk_of_few_steps_is_kept_where_no_time_is_left_for_a_better_one(served):
    steps, slow = served({'hasty': 12 * STEP, 'late': 13 * STEP, 'second': 19 * STEP})
    assert steps == {'hasty': 2, 'late': 2, 'second': 2}


def test_requests_with_the_same_deadline_are_not_served_again(served):
    steps, slow = served({'one': 12 * STEP, 'other': 12 * STEP})
    assert steps == {'one': 2, 'other': 2} and len(slow.batches) == 1


def test_equal_plans_are_one_batch(served):
    steps, slow = served({'one': math.inf, 'other': math.inf}, most=3)
    assert steps == {'one': 3, 'other': 3} and len(slow.batches) == 1


def test_estimates_are_dropped_after_several_hopeless_batches(served):
    hopeless = {'one': 1.0, 'other': 0.5, 'third': -3.0}
    steps, slow = served(hopeless, repeats=STARVED)
    assert set(steps.values()) == {0} and not slow.batches and not slow.forgotten
    steps, slow = served(hopeless, repeats=STARVED + 2)
    assert slow.forgotten == 2 * ['prefill', 'denoise_step']


def test_deadlines_that_have_passed_drop_no_estimate(served):
    steps, slow = served({'one': -1.0, 'other': -2.0})
    assert set(steps.values()) == {0} and not slow.batches and not slow.forgotten
