"""A chunk is complete or absent, never denoised in part.

With too little time there is no chunk; values that are not finite are an error.
"""

import math
import time

import numpy as np
import pytest


def denoise(engine, observation, deadline, **more):
    (handle,) = engine.prefill([observation])
    with engine.kv.acquire(handle) as lease:
        return engine.denoise([lease], [deadline], **more)


def test_a_short_deadline_gives_a_chunk_of_fewer_steps(make_engine, observe):
    engine = make_engine(time_budget=True, deadline_margin_ms=0.0)
    engine.latency.observe('denoise_step', 1.0)
    (chunk,) = denoise(engine, observe(0), time.monotonic() + 6.5)
    assert chunk.steps == 6
    assert np.isfinite(chunk.values).all()


def test_a_hopeless_deadline_gives_none_and_costs_nothing(make_engine, observe):
    engine = make_engine(time_budget=True)
    engine.latency.observe('denoise_step', 1.0)
    assert denoise(engine, observe(0), time.monotonic() + 3.9) == []
    engine.kv.check_integrity()
    assert engine.kv.stats().leases == 0


def test_a_step_more_or_less_ends_near_the_same_actions(make_engine, observe):
    few, many = make_engine(euler_steps=9), make_engine(euler_steps=10)
    (a,) = denoise(few, observe(0), time.monotonic() + 1)
    (b,) = denoise(many, observe(0), time.monotonic() + 1)
    assert (a.steps, b.steps) == (9, 10)
    assert 0 < np.abs(a.values - b.values).max() < np.abs(b.values).max()


def not_finite(result):
    return isinstance(result, FloatingPointError) and 'must be finite' in str(result)


def test_actions_that_are_not_finite_are_an_error(make_engine, observe):
    engine = make_engine()
    c = engine.policy.config
    bad = np.full((1, c.chunk_size, c.padded_action_dim), np.nan, np.float32)
    (result,) = denoise(engine, observe(0), time.monotonic() + 1, noises=bad)
    assert not_finite(result)


def test_actions_that_overflow_in_the_unit_of_the_policy_are_an_error(
    make_engine, observe, monkeypatch
):
    engine = make_engine()
    monkeypatch.setattr(
        type(engine.policy), 'actions', lambda self, values, state: np.full_like(values, np.inf)
    )
    (result,) = denoise(engine, observe(0), time.monotonic() + 1)
    assert not_finite(result)


@pytest.mark.parametrize('faulty', [0, 1, 2])
def test_one_robots_fault_costs_no_other_robot_its_chunk(make_engine, observe, faulty):
    engine = make_engine(max_batch_robots=3)
    handles = engine.prefill([observe(i, robot=f'r{i}') for i in range(3)])
    with engine.kv.frames.leases(handles) as leases:
        alone = [engine.denoise([lease], [math.inf])[0] for lease in leases]
        noises = engine._noises(leases)
        noises[faulty] = np.nan
        results = engine.denoise(leases, [math.inf] * 3, noises)
    for slot, (result, expected) in enumerate(zip(results, alone, strict=True)):
        if slot == faulty:
            assert not_finite(result)
        else:
            np.testing.assert_allclose(result.values, expected.values, atol=1e-4)


def test_a_failed_prefill_gives_its_row_back(make_engine, observe, monkeypatch):
    engine = make_engine()

    def fail(*_):
        raise MemoryError('no memory')

    monkeypatch.setattr(engine.policy.model, 'prefill', fail)
    with pytest.raises(MemoryError):
        engine.prefill([observe(0)])
    engine.kv.check_integrity()
    assert engine.kv.stats().rows_free == engine.config.rows


def test_the_same_frame_has_the_same_noise_and_robots_have_their_own(make_engine, observe):
    (a,) = denoise(make_engine(), observe(5), time.monotonic() + 1)
    (b,) = denoise(make_engine(), observe(5), time.monotonic() + 1)
    (other,) = denoise(make_engine(), observe(5, robot='left'), time.monotonic() + 1)
    np.testing.assert_array_equal(a.values, b.values)
    assert np.abs(a.values - other.values).max() > 1e-3
