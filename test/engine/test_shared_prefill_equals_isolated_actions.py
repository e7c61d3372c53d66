"""Actions from a row that language also reads equal those of a separate prefill, bit for bit."""

import time

import numpy as np
import pytest


def act(engine, handle):
    with engine.kv.acquire(handle) as lease:
        (chunk,) = engine.denoise([lease], [time.monotonic() + 1])
    return chunk.values


def isolated(engine, observation):
    (handle,) = engine.prefill([observation])
    return act(engine, handle)


def test_shared_equals_isolated(make_engine, observe):
    engine, alone = make_engine(), make_engine()
    for sequence in range(6):
        (handle,) = engine.prefill([observe(sequence)])
        engine.open(handle, 'Subtask:', max_tokens=9)
        engine.open(handle, 'What is it?', max_tokens=20, temperature=1.0, seed=sequence)
        for _ in range(4):
            engine.decode()
        np.testing.assert_array_equal(act(engine, handle), isolated(alone, observe(sequence)))
        engine.kv.check_integrity()


def test_actions_do_not_depend_on_the_row_they_are_read_from(make_engine, observe):
    engine = make_engine()
    (handle,) = engine.prefill([observe(3)])
    first = act(engine, handle)
    lease = engine.kv.acquire(handle)  # keeps the row, so the same frame is written to another one
    (again,) = engine.prefill([observe(3)])
    assert again.row != handle.row
    np.testing.assert_array_equal(act(engine, again), first)
    lease.release()


def test_a_batch_of_frames_equals_each_alone(make_engine, observe):
    frames = [
        observe(0, robot='a'),
        observe(1, robot='b', missing=[1]),
        observe(2, instruction='push'),
    ]
    engine = make_engine()
    handles = engine.prefill(frames)
    leases = [engine.kv.acquire(handle) for handle in handles]
    chunks = engine.denoise(leases, [time.monotonic() + 1] * 3)
    for frame, chunk in zip(frames, chunks, strict=True):
        np.testing.assert_allclose(chunk.values, isolated(make_engine(), frame), atol=2e-5)


def test_another_frame_gives_other_actions(make_engine, observe):
    engine = make_engine()
    assert np.abs(isolated(engine, observe(1)) - isolated(engine, observe(2))).max() > 0.01


@pytest.mark.parametrize('missing', [(0,), (1,)])
def test_a_missing_view_takes_no_room(make_engine, observe, missing):
    engine = make_engine()
    (handle,) = engine.prefill([observe(1, missing=missing)])
    (whole,) = engine.prefill([observe(1)])
    assert whole.length - handle.length == engine.policy.config.vision.tokens
