"""Temporal ensembling averages all actions predicted for a moment; the oldest weighs most."""

import numpy as np
import pytest
from latency_bench_cases import frame

from benchmarks.latency.ensemble import DECAY, Ensemble, average
from training.evaluate.cases import Case, Choice

CHUNK, DIM = 6, 7
ONE, OTHER = Case('reach', 0, 0), Case('pick', 0, 0)


def by_hand(said, now, moments):
    """Return the actions of ACT, moment by moment. said: period -> chunk, oldest first."""
    rows = []
    for moment in range(now, now + moments):
        spoken = [chunk[moment - p] for p, chunk in said.items() if 0 <= moment - p < len(chunk)]
        weights = [np.exp(-0.01 * k) for k in range(len(spoken))]
        rows.append(sum(w * x for w, x in zip(weights, spoken, strict=True)) / sum(weights))
    return np.array(rows)


class Recited:
    """An actor that returns a random chunk for each frame and records it."""

    def __init__(self):
        self.said, self.rng, self.finished = {}, np.random.default_rng(0), False

    def act(self, frames):
        made = [self.rng.normal(size=(CHUNK, DIM)) for _ in frames]
        for seen, chunk in zip(frames, made, strict=True):
            self.said.setdefault(seen.case, {})[seen.observation.sequence] = chunk
        return [Choice(chunk, 2) for chunk in made]

    def finish(self):
        self.finished = True


@pytest.mark.parametrize('periods', [range(9), (0, 3, 6, 9), (0, 1, 5, 6, 14), (0, 6, 12)])
def test_an_ensemble_equals_acts_by_hand(periods):
    """Late chunks come every few periods; with varying latency the intervals differ."""
    recited = Recited()
    ensemble = Ensemble(recited)
    for period in periods:
        choices = ensemble.act([frame(period, ONE), frame(period, OTHER)])
        for case, choice in zip((ONE, OTHER), choices, strict=True):
            expected = by_hand(recited.said[case], period, CHUNK)
            np.testing.assert_allclose(choice.chunk, expected, atol=1e-12)
            assert choice.execution_horizon == 2
    ensemble.finish()
    assert recited.finished


def test_what_nothing_older_says_is_the_newest():
    old, new = np.zeros((CHUNK, 1)), np.ones((CHUNK, 1))
    made = average([(0, old), (4, new)])[:, 0]
    share = np.exp(-DECAY) / (1 + np.exp(-DECAY))
    np.testing.assert_allclose(made, [share] * 2 + [1] * 4)


def test_another_episode_begins_anew():
    ensemble = Ensemble(Recited())
    ensemble.act([frame(0, ONE)])
    (choice,) = ensemble.act([frame(0, OTHER)])
    alone = Ensemble(Recited())
    alone.act([frame(5, ONE)])
    np.testing.assert_array_equal(choice.chunk, alone.act([frame(0, OTHER)])[0].chunk)
