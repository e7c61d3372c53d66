"""Kept scores of a prompt count as bytes of its row: they are claimed and freed with it."""

import pytest

from embodied_kv.engine.compression import PromptScores


@pytest.fixture
def engine(make_engine):
    return make_engine(compression_queries='text', language_keep_ratio=0.3)


def size(engine, handle):
    b = engine.policy.config.backbone
    return 4 * b.layers * b.heads * (handle.length + 1)


def row_bytes(engine, handle):
    return engine.kv.prefixes.bytes_of(handle.row) + size(engine, handle)


def test_the_pool_of_the_row_counts_them_and_frees_them_with_it(engine, observe):
    frames = engine.kv.frames
    before = frames.bytes
    (first,) = engine.prefill([observe(1)])
    assert engine.compression.prompts.get(first) is not None
    assert frames.bytes_used == frames.bytes_reserved == row_bytes(engine, first)
    assert frames.bytes == before + size(engine, first)
    (second,) = engine.prefill([observe(2)])  # frees the first row
    assert engine.compression.prompts.get(first) is None
    assert frames.bytes_used == frames.bytes_reserved == row_bytes(engine, second)
    frames.retire(second)
    assert (frames.bytes_used, frames.bytes) == (0, before)
    engine.kv.check_integrity()


def test_an_eviction_frees_them(engine, observe):
    (handle,) = engine.prefill([observe(1)])
    stream = engine.open(handle, 'what?', max_tokens=4)
    engine.prefill([observe(2)])  # now only the stream holds the first frame's row
    (offer,) = engine.kv.streams.evictable()
    promised = engine.kv.streams.bytes_for(stream.query)
    assert offer.size == promised + row_bytes(engine, handle)
    before = sum(pool.bytes_reserved for pool in engine.kv.pools)
    assert offer.evict() == before - sum(pool.bytes_reserved for pool in engine.kv.pools)
    engine.kv.check_integrity()


def test_the_same_frame_is_counted_once(engine, observe):
    (handle,) = engine.prefill([observe(1)])
    scores, used = engine.compression.prompts, engine.kv.frames.bytes_used
    scores.attach(handle, scores.get(handle))
    assert engine.kv.frames.bytes_used == used


def test_none_are_kept_where_the_budget_has_no_room(engine, observe):
    (handle,) = engine.prefill([observe(1)])
    statistics = engine.compression.prompts.get(handle)
    (handle,) = engine.prefill([observe(2)])
    kv_budget = engine.kv.budget
    engine.kv.frames.attach(handle, None, 0)
    kv_budget.capacity, kv_budget._floors = kv_budget.bytes_used, dict.fromkeys(kv_budget.pools, 0)
    failures = engine.kv.copies.allocation_failures
    engine.compression.prompts.attach(handle, statistics)
    assert engine.compression.prompts.get(handle) is None
    assert engine.kv.copies.allocation_failures == failures + 1


def test_the_floor_of_frames_holds_the_longest_scores(engine):
    pool = next(pool for pool in engine.kv.budget.stats() if pool.name == 'prefixes')
    rows = 2 * engine.config.max_batch_robots
    most = PromptScores.most_bytes(engine.policy.config)
    assert pool.floor == rows * (engine.kv.prefixes.bytes_per_row + most)
