"""The eviction of everything that is evictable, in the middle of any work, changes no result."""

import math

import numpy as np
import pytest
from capsule_sessions import begin, capsules_of, go_on

from embodied_kv.capsule import frozen_kv


@pytest.fixture
def engine(make_engine):
    """Return an engine whose frames are past their deadline as soon as they are written."""
    engine = make_engine(action_keep_ratio=0.3)
    engine.kv.frames.grace = -math.inf
    return engine


def evict_all(engine):
    """Evict everything that is offered, and return the bytes freed."""
    offers = [offer for pool in engine.kv.pools for offer in pool.evictable()]
    freed = sum(offer.evict() for offer in offers)
    engine.kv.check_integrity()
    return freed


@pytest.fixture
def evicting(engine, monkeypatch):
    """Return a function that patches a method to evict everything before each call."""

    def before(owner, name):
        work = getattr(owner, name)

        def evict_and_work(*given, **named):
            evict_all(engine)
            return work(*given, **named)

        monkeypatch.setattr(owner, name, evict_and_work)

    return before


def act(engine, handle):
    with engine.kv.frames.leases([handle]) as leases:
        (chunk,) = engine.denoise(leases, [math.inf])
    return chunk.values


def test_a_chunk_reads_its_copy_to_the_end(engine, make_engine, observe, evicting):
    (handle,) = engine.prefill([observe(1)])
    expected = act(engine, handle)
    evicting(engine._denoiser, 'run')
    np.testing.assert_array_equal(act(engine, handle), expected)


def test_without_its_copy_an_action_reads_the_row(engine, make_engine, observe):
    (handle,) = engine.prefill([observe(1)])
    compressed = act(engine, handle)
    with engine.kv.frames.leases([handle]):
        assert evict_all(engine) > 0 and engine.kv.stats().compressed == 0
        whole = act(engine, handle)
    plain = make_engine()
    np.testing.assert_array_equal(whole, act(plain, *plain.prefill([observe(1)])))
    assert not np.array_equal(whole, compressed)


def test_a_snapshot_and_its_replay_are_whole(engine, observe, evicting):
    (handle,) = engine.prefill([observe(1)])
    expected = act(engine, handle)
    evicting(engine.kv.prefixes, 'row')
    evicting(engine.kv.compressed, 'block')
    capsules = capsules_of(engine)
    capsule, _ = capsules.snapshot('here')
    assert capsule.tensors['session/row/0/k'].shape[2] == handle.length
    evicting(frozen_kv, 'fill')
    evicting(engine, 'denoise')
    np.testing.assert_array_equal(capsules.replay('here').values, expected)
    assert engine.kv.stats().leases == 0


def test_a_stream_is_resumed_whole(engine, observe, evicting):
    begin(engine, observe(1), questions=('Subtask:',))
    capsules = capsules_of(engine)
    capsules.snapshot('here')
    expected = go_on(engine)
    evicting(frozen_kv, 'fill')
    capsules.rollback('here')
    assert list(go_on(engine).values()) == list(expected.values())


def test_an_evicted_stream_says_so(engine, observe):
    begin(engine, observe(1), steps=1)
    offers = engine.kv.streams.evictable()
    assert all(offer.cost > 0 for offer in offers)  # of a prefill, and of a step for each token
    used = engine.kv.stats().bytes_used
    assert evict_all(engine) > 0
    assert [delta.reason for delta in engine.deltas()] == ['evicted'] * len(offers)
    assert evict_all(engine) > 0  # the frame that the streams held
    assert engine.kv.stats().bytes_used == 0 < used
