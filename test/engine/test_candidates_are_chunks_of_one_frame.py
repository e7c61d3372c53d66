"""`Engine.candidates` returns the chunk that `denoise` makes of the noise of each seed."""

import math
import time

import numpy as np
import pytest

from embodied_kv.engine.denoise import noise
from embodied_kv.types import Guide

SEEDS = (0, 3, 11, 2**64 - 1, 5, 3, 8)


def leased(engine, observe, sequence=4):
    (handle,) = engine.prefill([observe(sequence)])
    return engine.kv.acquire(handle)


def values(chunks):
    return [chunk.values for chunk in chunks]


def test_candidate_of_the_engines_seed_is_the_chunk_of_the_frame(make_engine, observe):
    engine = make_engine(seed=7)
    with leased(engine, observe) as lease:
        (chunk,) = engine.denoise([lease], [math.inf])
        (candidate,) = engine.candidates(lease, [7])
    np.testing.assert_array_equal(candidate.values, chunk.values)
    np.testing.assert_array_equal(candidate.updates, chunk.updates)
    assert (candidate.stamp, candidate.sequence) == (chunk.stamp, chunk.sequence)


def test_candidates_equal_denoise_of_the_same_noise(make_engine, observe):
    engine = make_engine(max_batch_robots=4)
    c = engine.policy.config
    shape = c.chunk_size, c.padded_action_dim
    with leased(engine, observe) as lease:
        candidates = engine.candidates(lease, SEEDS[:4])
        noises = np.stack([noise(seed, '', 4, shape) for seed in SEEDS[:4]])
        chunks = engine.denoise([lease] * 4, [math.inf] * 4, noises)
    np.testing.assert_array_equal(values(candidates), values(chunks))


def test_seeds_differ_and_equal_seeds_are_equal(make_engine, observe):
    engine = make_engine(max_batch_robots=1)
    with leased(engine, observe) as lease:
        found = values(engine.candidates(lease, SEEDS))
        again = values(engine.candidates(lease, SEEDS))
    np.testing.assert_array_equal(found, again)
    assert len({each.tobytes() for each in found}) == len({*SEEDS})
    np.testing.assert_array_equal(found[1], found[5])


def test_a_candidate_depends_on_seed_and_frame_alone(make_engine, observe):
    one, other = make_engine(max_batch_robots=1), make_engine(max_batch_robots=1, seed=9)
    other.prefill([observe(2)])  # so that the frame is in another row
    with leased(one, observe) as here, leased(other, observe) as there:
        assert here.row != there.row
        mine, theirs = one.candidates(here, SEEDS), other.candidates(there, SEEDS)
        np.testing.assert_array_equal(values(mine), values(theirs))
    with leased(one, observe, 5) as later:
        assert not np.array_equal(values(one.candidates(later, [3])), values(mine[1:2]))


@pytest.mark.parametrize('most', [1, 2, 3, 5])
def test_batches_have_at_most_the_configured_size(make_engine, observe, monkeypatch, most):
    engine, sizes = make_engine(max_batch_robots=most), []
    run = engine._denoiser.run
    monkeypatch.setattr(
        engine._denoiser, 'run', lambda rows, *how: sizes.append(len(rows)) or run(rows, *how)
    )
    with leased(engine, observe) as lease:
        found = engine.candidates(lease, SEEDS)
        alone = [engine.candidates(lease, [seed])[0] for seed in SEEDS]
    assert sizes[: -len(SEEDS)] == [most] * (len(SEEDS) // most) + [len(SEEDS) % most] * (
        len(SEEDS) % most > 0
    )
    np.testing.assert_allclose(values(found), values(alone), atol=1e-5)


def test_the_row_and_its_reader_stay(make_engine, observe):
    engine = make_engine()
    with leased(engine, observe) as lease:
        before = [part.clone() for part in engine.kv.prefixes.row(lease.row)]
        stats = engine.kv.stats()
        engine.candidates(lease, SEEDS)
        assert engine.kv.stats() == stats
        for was, part in zip(before, engine.kv.prefixes.row(lease.row), strict=True):
            assert was.equal(part)
    engine.kv.check_integrity()


@pytest.mark.parametrize('rtc', ['guided', 'trained'])
def test_candidates_continue_the_guide(make_engine, observe, rtc):
    engine = make_engine(rtc=rtc)
    guide = Guide(np.full((6, 7), 0.01, np.float32), 2, np.linspace(1, 0, 6))
    with leased(engine, observe) as lease:
        (chunk,) = engine.denoise([lease], [math.inf], guides=[guide])
        (guided,) = engine.candidates(lease, [0], guide=guide)
        (free,) = engine.candidates(lease, [0])
    np.testing.assert_array_equal(guided.values, chunk.values)
    assert not np.array_equal(guided.values, free.values)


def test_without_time_there_are_no_candidates(make_engine, observe):
    engine = make_engine(time_budget=True)
    with leased(engine, observe) as lease:
        engine.candidates(lease, [0])  # measures a step
        assert engine.candidates(lease, SEEDS, deadline=time.monotonic()) == []
        assert engine.candidates(lease, []) == []


@pytest.mark.parametrize('seed', [-1, 2**64])
def test_a_seed_out_of_range_is_refused(make_engine, observe, seed):
    engine = make_engine()
    with leased(engine, observe) as lease:
        before = engine.committed
        with pytest.raises(ValueError, match='seed must be from 0'):
            engine.candidates(lease, [1, seed])
        assert engine.committed == before
