"""`replay` returns the original chunk byte for byte, whatever was computed in between."""

import math

import numpy as np
import pytest
from capsule_sessions import begin, capsules_of, dirty

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.types import Guide


def test_replay_of_a_frozen_frame_is_byte_identical(make_engine, observe):
    engine = make_engine()
    frame = observe(4)
    (handle,) = engine.prefill([frame])
    with engine.kv.acquire(handle) as lease:
        (chunk,) = engine.denoise([lease], [frame.deadline])
    capsules = capsules_of(engine)
    capsule, _ = capsules.snapshot('episode')
    dirty(engine, observe)
    again = capsules.replay('episode')
    np.testing.assert_array_equal(again.values, chunk.values)
    assert (again.stamp, again.sequence) == (chunk.stamp, chunk.sequence)
    assert capsule.boundary.stamp == frame.stamp
    engine.kv.check_integrity()


@pytest.mark.parametrize('rtc', ['guided', 'trained'])
def test_replay_goes_on_from_what_the_chunk_went_on_from(make_engine, observe, rtc):
    engine = make_engine(rtc=rtc)
    guide = Guide(np.full((6, 7), 0.01, np.float32), 2, np.linspace(1, 0, 6))
    (handle,) = engine.prefill([observe(4)])
    with engine.kv.acquire(handle) as lease:
        (other,) = engine.denoise([lease], [math.inf])
        (chunk,) = engine.denoise([lease], [math.inf], guides=[guide])
    capsules = capsules_of(engine)
    capsules.snapshot('episode')
    dirty(engine, observe)
    np.testing.assert_array_equal(capsules.replay('episode').values, chunk.values)
    assert not np.array_equal(chunk.values, other.values)


def test_no_row_is_left_behind(make_engine, observe):
    engine = make_engine()
    begin(engine, observe(1))
    capsules = capsules_of(engine)
    capsules.snapshot('here')
    free = engine.kv.stats().rows_free
    capsules.replay('here')
    assert engine.kv.stats().rows_free == free


def test_before_the_first_frame_there_is_nothing_to_replay(make_engine):
    capsules = capsules_of(make_engine())
    capsules.snapshot('early')
    with pytest.raises(CapsuleError, match='it was taken before the first one'):
        capsules.replay('early')
