"""Work that exceeds the largest graph is refused with a remedy, and nothing is held afterwards."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.engine import shapes
from embodied_kv.engine.shapes import Kind
from embodied_kv.runtime.graph_cache import MissingShapeError, Shape


def test_more_frames_than_robots_are_refused(make_engine, observe):
    engine = make_engine(max_batch_robots=2)
    with pytest.raises(
        ValueError, match='3 frames do not fit into 2: raise engine.max_batch_robots'
    ):
        engine.prefill([observe(n, robot=f'r{n}') for n in range(3)])
    assert engine.kv.stats().rows_free == engine.kv.stats().rows
    engine.kv.check_integrity()
    assert len(engine.prefill([observe(n, robot=f'r{n}') for n in range(2)])) == 2


def test_more_chunks_than_robots_are_refused(make_engine, observe):
    engine = make_engine(max_batch_robots=1)
    (handle,) = engine.prefill([observe(1)])
    leases = [engine.kv.acquire(handle) for _ in range(2)]
    with pytest.raises(
        ValueError, match='2 chunks do not fit into 1: raise engine.max_batch_robots'
    ):
        engine.denoise(leases, [math.inf] * 2)
    assert len(engine.denoise(leases[:1], [math.inf])) == 1


def test_a_query_that_no_decode_row_holds_is_refused_at_admission(make_engine, observe):
    engine = make_engine(decode_tokens=20)
    (handle,) = engine.prefill([observe(1)])
    with pytest.raises(ValueError, match='raise engine.decode_tokens'):
        engine.open(handle, 'x' * 30, max_tokens=4)


def test_a_shape_without_a_graph_is_an_error(make_engine):
    with pytest.raises(MissingShapeError, match='must be captured at configure .got prefill 1x3.'):
        make_engine().graphs[Shape(Kind.PREFILL, 1, 3)]


@given(most=st.integers(1, 300), step=st.integers(1, 40), needed=st.integers(1, 300))
def test_the_bucket_is_the_smallest_that_holds_them(most, step, needed):
    for sizes in (shapes.doubling(most), shapes.multiples(most, step)):
        assert list(sizes) == sorted(set(sizes)) and sizes[-1] >= most
        if needed > sizes[-1]:
            with pytest.raises(ValueError, match='streams do not fit'):
                shapes.smallest(sizes, needed, 'streams', '')
        else:
            found = shapes.smallest(sizes, needed, 'streams', '')
            assert found in sizes and not any(needed <= size < found for size in sizes)
