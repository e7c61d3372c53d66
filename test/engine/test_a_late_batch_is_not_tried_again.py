"""`serve`: who is late is not tried again, alone or at all; who fails for another reason is."""

import time
from dataclasses import replace

import pytest

from embodied_kv.serving.batch import serve


@pytest.fixture
def engine(make_engine):
    """An engine that counts the frames of its prefills."""
    engine = make_engine(robots=4)
    engine.frames, prefill = [], engine.prefill

    def counted(observations):
        engine.frames.append(len(observations))
        return prefill(observations)

    engine.prefill = counted
    return engine


def later():
    return time.monotonic() + 60.0


def frames(observe, count=4):
    return [replace(observe(n), robot=f'/r{n}') for n in range(count)]


def late_from(engine, calls):
    """From this denoising on, counted from 0, there is no time left for any."""
    denoise, left = engine.denoise, iter([True] * calls)
    engine.denoise = lambda *batch: denoise(*batch) if next(left, False) else []


def broken(frame):
    return replace(frame, state=frame.state[:2])


def test_a_late_batch_is_prefilled_once(engine, observe):
    late_from(engine, 0)
    with pytest.raises(TimeoutError, match='no time was left'):
        serve(engine, frames(observe), later())
    assert engine.frames == [4]
    engine.kv.check_integrity()


def test_one_broken_frame_costs_a_prefill_of_each(engine, observe):
    first, second, *others = frames(observe)
    results = serve(engine, [first, broken(second), *others], later())
    assert engine.frames == [4, 1, 1, 1, 1]
    assert [isinstance(result, Exception) for result in results] == [False, True, False, False]


def test_while_each_is_tried_alone_the_first_that_is_late_ends_it(engine, observe):
    late_from(engine, 1)
    first, second, *others = frames(observe)
    results = serve(engine, [first, broken(second), *others], later())
    assert engine.frames == [4, 1, 1, 1]  # the last one is late without a try
    assert len(results[0].values) and not isinstance(results[1], TimeoutError)
    assert all(isinstance(result, TimeoutError) for result in results[2:])
    assert engine.kv.stats().leases == 0
    engine.kv.check_integrity()
