"""`serve` retries each robot alone after an unknown fault, but no late or invalid observation."""

import time
from dataclasses import replace

import pytest

from embodied_kv.engine.prefill import BadObservationError
from embodied_kv.serving.batch import LateError, serve


@pytest.fixture
def engine(make_engine):
    """Return an engine that records the number of frames of each prefill."""
    engine = make_engine(max_batch_robots=4)
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
    """Let `denoise` return no chunk, for lack of time, from this call on, counted from 0."""
    denoise, left = engine.denoise, iter([True] * calls)
    engine.denoise = lambda *batch: denoise(*batch) if next(left, False) else []


def bad(frame):
    return replace(frame, state=frame.state[:2])


def breaks_of(engine, robot):
    """Let every batch with this robot fail for an unknown reason."""
    prefill = engine.prefill

    def broken(observations):
        handles = prefill(observations)
        if robot in [observation.robot for observation in observations]:
            raise RuntimeError('it broke')
        return handles

    engine.prefill = broken


def test_a_late_batch_is_prefilled_once_and_each_hears_so(engine, observe):
    late_from(engine, 0)
    results = serve(engine, frames(observe), later())
    assert engine.frames == [4]
    assert all(isinstance(result, LateError) for result in results) and len(results) == 4
    assert engine.kv.stats().leases == 0
    engine.kv.check_integrity()


def test_a_bad_observation_costs_no_prefill_of_the_others_alone(engine, observe):
    first, second, *others = frames(observe)
    results = serve(engine, [first, bad(second), *others], later())
    assert engine.frames == [4, 3]
    assert [isinstance(result, Exception) for result in results] == [False, True, False, False]


def test_two_bad_observations_leave_a_batch_of_two(engine, observe):
    first, second, third, last = frames(observe)
    results = serve(engine, [bad(first), second, bad(third), last], later())
    assert engine.frames == [4, 3, 2]
    assert [isinstance(result, BadObservationError) for result in results] == [
        True,
        False,
        True,
        False,
    ]
    assert ['/r0' in str(results[0]), '/r2' in str(results[2])] == [True, True]
    assert [results[1].sequence, results[3].sequence] == [1, 3]


def test_an_unknown_fault_costs_a_prefill_of_each(engine, observe):
    breaks_of(engine, '/r1')
    results = serve(engine, frames(observe), later())
    assert engine.frames == [4, 1, 1, 1, 1]
    assert [isinstance(result, Exception) for result in results] == [False, True, False, False]


def test_while_each_is_tried_alone_the_first_that_is_late_ends_it(engine, observe):
    late_from(engine, 1)
    breaks_of(engine, '/r1')
    results = serve(engine, frames(observe), later())
    assert engine.frames == [4, 1, 1, 1]  # the last one counts as late without a try
    assert len(results[0].values) and not isinstance(results[1], TimeoutError)
    assert all(isinstance(result, TimeoutError) for result in results[2:])
    assert engine.kv.stats().leases == 0
    engine.kv.check_integrity()
