"""Warm-up leaves estimates without the first runs, and holds no row."""

import math

import pytest

from embodied_kv.engine.warmup import warm_up


def test_every_kind_of_work_is_estimated_after_one_measured_run(make_engine):
    engine = make_engine(time_budget=True, streams=5)
    warm_up(engine)
    measured = engine.latency._measured
    assert set(measured) >= {'prefill', 'denoise_step', 'begin', 'decode'}
    assert len(measured['prefill'][1]) == 1
    assert len(measured['denoise_step'][1]) == 1
    assert set(measured['decode']) >= {5}


def test_a_slow_first_run_is_not_in_the_estimates(make_engine, monkeypatch):
    engine = make_engine()
    observe = engine.latency.observe
    slow = {'prefill', 'denoise_step', 'begin', 'decode'}

    def first_is_slow(kind, seconds, size=1):
        observe(kind, 1e3 if kind in slow else seconds, size)
        slow.discard(kind)

    monkeypatch.setattr(engine.latency, 'observe', first_is_slow)
    warm_up(engine)
    assert all(
        engine.latency.estimate(kind, 1) < 1e3
        for kind in ('prefill', 'denoise_step', 'begin', 'decode')
    )


def test_a_long_first_run_is_not_repeated(make_engine, monkeypatch):
    engine = make_engine()
    prefills, prefill = [], engine.prefill
    monkeypatch.setattr(engine, 'prefill', lambda frames: prefills.append(1) or prefill(frames))
    monkeypatch.setattr('embodied_kv.engine.warmup.LONG', 0.0)
    warm_up(engine)
    assert len(prefills) == 1
    assert engine.latency.estimate('prefill') > 0


def test_a_policy_that_is_not_finite_is_refused(make_engine):
    engine = make_engine()
    weight = next(engine.policy.model.parameters())
    kept = weight.detach().clone()
    try:
        weight.data.fill_(math.nan)
        with pytest.raises(FloatingPointError):
            warm_up(engine)
    finally:
        weight.data.copy_(kept)  # other engines share the weights


def test_no_frame_of_it_is_remembered(make_engine):
    engine = make_engine(memory_rows=4)
    warm_up(engine)
    assert engine.memory.bytes_used == 0


def test_no_row_is_held_and_the_budget_is_as_configured(make_engine):
    engine = make_engine(time_budget=True, euler_steps=7)
    warm_up(engine)
    stats = engine.kv.stats()
    assert (stats.rows_free, stats.streams, stats.leases) == (stats.rows, 0, 0)
    assert (engine.budget.enabled, engine.budget.euler_steps) == (True, 7)
    assert engine.deltas() == []
    engine.kv.check_integrity()


def test_the_smallest_engine_warms_up(make_engine):
    least = dict(
        max_batch_robots=1, rows=3, streams=1, decode_tokens=8, euler_steps=1, min_euler_steps=1
    )
    warm_up(make_engine(**least))
