"""Restored streams and actions over compressed prefixes equal those of an uninterrupted run."""

import math

import numpy as np
import pytest
import torch
from capsule_sessions import QUESTIONS, begin, capsules_of, dirty, go_on

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.disk import Disk
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier
from embodied_kv.engine.fingerprint import fingerprint
from embodied_kv.kv.manager import LANGUAGE
from embodied_kv.session.engine_part import Branch


@pytest.mark.parametrize('by', ['stream', 'row'])
@pytest.mark.parametrize('temperature', [0.0, 1.0])
def test_restored_streams_say_what_they_would_have_said(make_engine, observe, by, temperature):
    engine = make_engine(language_keep_ratio=0.3, compression_queries=by)
    begin(engine, observe(1), temperature=temperature, seed=3)
    engine.prefill([observe(2)])  # only the copies of the first frame are left
    capsules = capsules_of(engine)
    capsule, _ = capsules.snapshot('here')
    budgets = [row['budgets'] for row in capsule.facts['session']['rows'] if row['budgets']]
    assert len(budgets) == (len(QUESTIONS) if by == 'stream' else 1)
    expected = go_on(engine)
    dirty(engine, observe)
    capsules.rollback('here')
    assert all(stream.lease.is_copy for stream in engine.kv.streams.live())
    assert list(go_on(engine).values()) == list(expected.values())
    engine.kv.check_integrity()


def test_whole_and_compressed_streams_are_restored_together(make_engine, observe):
    engine = make_engine()
    begin(engine, observe(1), questions=QUESTIONS[:2])
    engine.compression.set_keep_ratio(LANGUAGE, 0.3)
    begin(engine, observe(2), questions=QUESTIONS[1:])
    capsules = capsules_of(engine)
    capsules.snapshot('mixed')
    expected = go_on(engine)
    dirty(engine, observe)
    capsules.rollback('mixed')
    assert [stream.lease.is_copy for stream in engine.kv.streams.live()] == [False] * 2 + [
        True
    ] * 2
    assert list(go_on(engine).values()) == list(expected.values())
    engine.kv.check_integrity()


def test_the_copies_of_a_restored_session_have_the_same_bytes(make_engine, observe):
    engine = make_engine(language_keep_ratio=0.3)
    begin(engine, observe(1))
    capsules = capsules_of(engine)
    first, _ = capsules.snapshot('first')
    dirty(engine, observe)
    capsules.rollback('first')
    for stream, facts in zip(
        engine.kv.streams.live(), first.facts['session']['streams'], strict=True
    ):
        for kind, block in zip('kv', engine.kv.compressed.block(stream.lease.row), strict=True):
            assert torch.equal(block, first.tensors[f'session/row/{facts["row"]}/{kind}'])


def test_forks_share_one_copy(make_engine, observe):
    engine = make_engine(language_keep_ratio=0.3)
    begin(engine, observe(1), questions=QUESTIONS[:1], temperature=1.0, seed=1)
    capsules = capsules_of(engine)
    capsules.snapshot('here')
    compressed = engine.kv.stats().compressed
    grown, _ = capsules.fork('here', [Branch(seed=seed) for seed in range(4)])
    assert len({stream.lease.row for streams in grown for stream in streams}) == 1
    assert engine.kv.stats().compressed == compressed + 1
    go_on(engine)
    engine.kv.check_integrity()


def test_an_action_over_a_compressed_prefix_is_replayed_byte_for_byte(make_engine, observe):
    engine = make_engine(action_keep_ratio=0.3)
    (handle,) = engine.prefill([observe(4)])
    with engine.kv.acquire(handle) as lease:
        (chunk,) = engine.denoise([lease], [math.inf])
    capsules = capsules_of(engine)
    capsules.snapshot('episode')
    dirty(engine, observe)
    compressed = engine.kv.stats().compressed
    np.testing.assert_array_equal(capsules.replay('episode').values, chunk.values)
    assert engine.kv.stats().compressed == compressed
    engine.kv.check_integrity()


def test_through_the_disk_and_another_engine(make_engine, observe, tmp_path):
    engine = make_engine(language_keep_ratio=0.3)
    begin(engine, observe(1))
    saved = Registry(fingerprint(engine), disk=Disk(tmp_path))
    capsules_of(engine, saved).snapshot('here', tier=Tier.DISK)
    saved.close()
    expected = go_on(engine)
    other = make_engine(language_keep_ratio=0.3)
    other.prefill([observe(5)])
    there = capsules_of(other, Registry(fingerprint(other), disk=Disk(tmp_path)))
    there.restore('here', None)
    engine.kv.check_integrity()
    assert not other.kv.streams.live()  # without a scene it holds, and no stream resumes
    grown, _ = there.fork('here', [Branch()])
    assert len(grown[0]) == len(expected)
    assert list(go_on(other).values()) == list(expected.values())
    other.kv.check_integrity()


def test_without_room_it_is_refused_and_nothing_has_changed(make_engine, observe):
    engine = make_engine(language_keep_ratio=0.3)
    begin(engine, observe(1))
    capsules = capsules_of(engine)
    capsules.snapshot('here')
    small = make_engine(compressed_rows=0)
    begin(small, observe(1))
    before = small.kv.stats()
    there = capsules_of(small, capsules.registry)
    with pytest.raises(CapsuleError, match='raise engine.compressed_rows'):
        there.fork('here', [Branch()])
    assert small.kv.stats() == before
    small.kv.check_integrity()
