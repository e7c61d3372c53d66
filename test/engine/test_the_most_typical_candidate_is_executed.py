"""With `chunk_candidates`, a chunk is the candidate with the smallest distance to all others."""

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.engine.denoise import consensus
from embodied_kv.engine.time_budget import LatencyEstimator, TimeBudget


@given(seed=st.integers(0, 2**32 - 1), number=st.integers(1, 6), robots=st.integers(1, 3))
def test_the_choice_has_the_smallest_sum_of_distances(seed, number, robots):
    chunks = np.random.default_rng(seed).normal(size=(number, robots, 4, 3)).astype(np.float32)
    for robot, chosen in enumerate(consensus(chunks)):
        own = chunks[:, robot].reshape(number, -1).astype(float)
        sums = [sum(np.linalg.norm(a - b) for b in own) for a in own]
        assert sums[chosen] == pytest.approx(min(sums))


def test_an_outlier_is_not_chosen():
    chunks = np.zeros((3, 1, 2, 2), np.float32)
    chunks[0], chunks[1, 0, 0, 0] = 9.0, 0.1
    assert consensus(chunks).tolist() == [1]


@pytest.mark.parametrize('bad', [math.nan, math.inf])
def test_a_candidate_that_is_not_finite_is_chosen_only_without_another(bad):
    chunks = np.zeros((3, 2, 2, 2), np.float32)
    chunks[0, 0], chunks[:, 1] = bad, bad
    chosen = consensus(chunks)
    assert chosen[0] in (1, 2) and chosen[1] == 0


@pytest.fixture
def engine(make_engine):
    return make_engine(max_batch_robots=2, chunk_candidates=4, seed=5)


def leases(engine, observe):
    first, second = engine.prefill([observe(4), observe(4, robot='other')])
    return engine.kv.acquire(first), engine.kv.acquire(second)


def test_a_chunk_is_the_most_typical_candidate_of_its_own_frame(engine, observe):
    both = leases(engine, observe)
    chunks = engine.denoise(both, [math.inf] * 2)
    for lease, chunk in zip(both, chunks, strict=True):
        found = engine.candidates(lease, range(5, 9))
        state = engine.states[lease.row]
        actions = [engine.policy.targets(each.values, state) for each in found]
        chosen = found[consensus(np.stack(actions)[:, None])[0]]
        np.testing.assert_allclose(chunk.values, chosen.values, atol=1e-5)
        np.testing.assert_allclose(chunk.updates, chosen.updates, atol=1e-5)
        assert not np.allclose(chunk.values, found[0].values) or chosen is found[0]
        lease.release()


def test_with_little_time_the_first_candidate_is_executed(make_engine, observe):
    engine = make_engine(max_batch_robots=2, chunk_candidates=4, seed=5, time_budget=True)
    lease, other = leases(engine, observe)
    (alone,) = engine.candidates(lease, [5])
    engine.latency.clear()
    engine.latency.observe('denoise_step', 1e-4, 1)
    engine.latency.observe('denoise_step', 1e3, 2)
    (chunk,) = engine.denoise([lease], [time.monotonic() + 60])
    np.testing.assert_allclose(chunk.values, alone.values, atol=1e-5)
    assert engine.latency.count('denoise_step', 1) == 2
    lease.release(), other.release()


def budget(seconds):
    costs = LatencyEstimator()
    for size, cost in seconds.items():
        costs.observe('denoise_step', cost, size)
    kept = dict(period=0.1, margin=0.0, euler_steps=10, min_euler_steps=4)
    return TimeBudget(costs, **kept)


@pytest.mark.parametrize(
    'left, batch, number',
    [(0.1, 1, 4), (0.05, 1, 2), (0.01, 1, 1), (0.001, 1, 1), (0.05, 2, 1), (math.inf, 2, 4)],
)
def test_candidates_cost_no_euler_step(left, batch, number):
    plan = budget({1: 0.001, 2: 0.004, 4: 0.008, 8: 0.02})
    assert plan.candidates(0.0, left, 10, batch, (1, 2, 4)) == number


def test_candidates_that_did_not_fit_are_tried_again():
    plan = budget({1: 0.001, 2: 5.0})
    numbers = [plan.candidates(0.0, 0.1, 10, 1, (1, 2)) for _ in range(40)]
    assert numbers[0] == 1 and numbers[-1] == 2
