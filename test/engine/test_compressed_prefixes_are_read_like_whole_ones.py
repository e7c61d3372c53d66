"""Streams and actions over compressed prefixes attend to the kept tokens only."""

import math
import sys

import numpy as np
import pytest
import torch

from embodied_kv.kernels.attention import merge, row_attention
from embodied_kv.kernels.rows import RowBatch
from embodied_kv.kv.manager import LANGUAGE

QUESTIONS = ('Subtask:', 'What is in the gripper?', 'Narrate: and what for?')
EVERY = ('vl_cache', 'streaming_llm', 'random', 'h2o', 'zipcache', 'snapkv', 'pyramidkv')


def say(engine, handle, questions=QUESTIONS, tokens=8):
    """Return the tokens of a stream for each question, decoded in one batch."""
    streams = [engine.open(handle, q, max_tokens=tokens) for q in questions]
    while any(not stream.reason for stream in streams):
        engine.decode()
    return [stream.tokens for stream in streams]


def act(engine, handle):
    with engine.kv.acquire(handle) as lease:
        (chunk,) = engine.denoise([lease], [math.inf])
    return chunk.values


class CopiedCache:
    """A copy of a stream's cache: of each layer the kept prefix tokens, then its decode KV."""

    def __init__(self, engine, stream):
        self.compressed, self.row = engine.kv.compressed, stream.lease.row
        own = stream.decode_row
        self.decode_kv = [[part[own].clone() for part in kv] for kv in engine.kv.decode_kv.layers]
        self.length = int(engine.kv.decode_kv.lengths[0, own])
        self.positions = torch.tensor([[stream.lease.handle.length + self.length]])

    def store(self, layer, q, k, v):
        for own, new in zip(self.decode_kv[layer], (k, v), strict=True):
            own[:, self.length] = new[0, 0]

    def attend(self, layer, q, k, v):
        self.store(layer, q, k, v)
        parts = []
        own_keys = self.decode_kv[layer][0]
        for keys, values in (self.compressed.piece(layer, self.row), self.decode_kv[layer]):
            n = keys.shape[1] if keys is not own_keys else self.length + 1
            own = RowBatch.dense(1, n, 1, q.device)
            parts.append(row_attention(q, keys[None].clone(), values[None].clone(), own))
        return merge(*parts)

    def newest(self, hidden):
        return hidden[:, -1]


@pytest.mark.parametrize('name', ['vl_cache', 'streaming_llm'])
@torch.inference_mode()
def test_decoding_reads_the_kept_tokens_alone(make_engine, observe, name):
    engine = make_engine(language_keep_ratio=0.3, compression_method=name)
    (handle,) = engine.prefill([observe(1)])
    stream = engine.open(handle, QUESTIONS[0], max_tokens=12)
    engine.decode()
    assert stream.lease.is_copy
    copied = CopiedCache(engine, stream)
    wanted = engine.policy.model.extend(torch.tensor([[stream.tokens[-1]]]), copied)
    engine.decode()
    torch.testing.assert_close(engine._decoder._out[:1], wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize('by', ['stream', 'row', 'text'])
def test_a_budget_is_met_exactly(make_engine, observe, by):
    engine = make_engine(language_keep_ratio=0.25, compression_queries=by)
    (handle,) = engine.prefill([observe(1)])
    streams = [engine.open(handle, q, max_tokens=12) for q in QUESTIONS]
    for _ in streams:
        engine.decode()
    layers = len(engine.kv.compressed.layers)
    for stream in streams:
        kept = engine.kv.compressed.lengths[:, stream.lease.row]
        assert kept.sum() == round(0.25 * layers * handle.length)
        assert engine.kv.compressed.positions[stream.lease.row] == handle.length
    assert len({stream.lease.row for stream in streams}) == (1 if by == 'row' else 3)
    engine.kv.check_integrity()


def test_a_keep_ratio_of_one_is_no_compression(make_engine, observe):
    engines = make_engine(compressed_rows=0), make_engine(), make_engine(compression_queries='row')
    said, acted = [], []
    for engine in engines:
        (handle,) = engine.prefill([observe(1)])
        said.append(say(engine, handle))
        acted.append(act(engine, handle))
        assert engine.kv.stats().compressed == 0
    assert said[0] == said[1] == said[2]
    assert np.array_equal(acted[0], acted[1]) and np.array_equal(acted[0], acted[2])


def test_a_batch_of_whole_and_compressed_equals_each_alone(make_engine, observe):
    def lived(questions):
        """Return the tokens of streams over several frames; every second prefix is compressed."""
        engine, streams = make_engine(), []
        for number, question in enumerate(QUESTIONS * 2):
            (handle,) = engine.prefill([observe(number)])
            if number not in questions:
                continue
            engine.compression.set_keep_ratio(LANGUAGE, 0.3 if number % 2 else 1.0)
            streams.append(engine.open(handle, question, max_tokens=10))
            engine.decode()
            assert (streams[-1].lease.is_copy) == bool(number % 2)
        while any(not stream.reason for stream in streams):
            engine.decode()
        engine.kv.check_integrity()
        return [stream.tokens for stream in streams]

    together = lived(range(6))
    assert together == [lived([number])[0] for number in range(6)]


def test_actions_read_their_own_copy(make_engine, observe):
    whole, small = make_engine(), make_engine(action_keep_ratio=0.2)
    acted = []
    for engine in (whole, small):
        (handle,) = engine.prefill([observe(1)])
        acted.append(act(engine, handle))
        assert say(engine, handle) == say(whole, whole.kv.frames.current())
    assert small.kv.stats().compressed == 1
    assert not np.array_equal(*acted)
    small.prefill([observe(2)])
    assert small.kv.stats().compressed == 1  # the copy of the first frame was freed with it
    small.kv.check_integrity()


def test_one_copy_serves_two_consumers_of_one_keep_ratio(make_engine, observe):
    engine = make_engine(action_keep_ratio=0.2, language_keep_ratio=0.2, compression_queries='row')
    (handle,) = engine.prefill([observe(1)])
    assert engine.kv.stats().compressed == 1
    act(engine, handle)
    say(engine, handle)
    engine.kv.check_integrity()


def test_answers_are_the_same_after_the_row_is_freed(make_engine, observe):
    engine = make_engine(language_keep_ratio=0.4, compression_queries='row')
    (handle,) = engine.prefill([observe(1)])
    act(engine, handle)
    before, free = say(engine, handle), engine.kv.stats().rows_free
    engine.kv.reduce(handle)
    assert engine.kv.stats().rows_free == free + 1
    engine.prefill([observe(2, robot='other')])  # it overwrites the row
    assert say(engine, handle) == before
    engine.kv.check_integrity()


def test_row_stays_where_each_question_chooses_its_own_copy(make_engine, observe):
    engine = make_engine(language_keep_ratio=0.4, compression_queries='text')
    (handle,) = engine.prefill([observe(1)])
    act(engine, handle)
    engine.kv.reduce(handle)
    engine.kv.acquire(handle).release()


@pytest.mark.parametrize('name', EVERY)
def test_every_method_compresses_by_row(make_engine, observe, name):
    engine = make_engine(
        compression_method=name,
        compression_queries='row',
        language_keep_ratio=0.2,
        action_keep_ratio=0.3,
    )
    handles = engine.prefill([observe(n, robot=f'r{n}', missing=(n,)) for n in range(2)])
    for handle in handles:
        assert np.isfinite(act(engine, handle)).all()
        assert all(say(engine, handle))
    assert engine.kv.stats().compressed == 4
    engine.kv.check_integrity()


def test_without_room_a_stream_reads_the_whole_row(make_engine, observe):
    engine = make_engine(compressed_rows=1, language_keep_ratio=0.9)
    (handle,) = engine.prefill([observe(1)])
    streams = [engine.open(handle, q, max_tokens=12) for q in QUESTIONS]
    for _ in streams:
        engine.decode()
    assert [stream.lease.is_copy for stream in streams] == [True, False, False]
    stats = engine.kv.stats()
    assert stats.allocation_failures == 2 and stats.prefills_shared == len(streams)
    assert engine.seconds_saved == len(streams) * engine.latency.estimate('prefill') > 0
    engine.kv.check_integrity()


@pytest.mark.parametrize('keep_ratio', [0, 0.009, 1.1, math.nan])
def test_a_keep_ratio_out_of_range_is_refused(make_engine, keep_ratio):
    engine = make_engine()
    with pytest.raises(ValueError, match=r'must be in \[0.01, 1\]'):
        engine.compression.set_keep_ratio(LANGUAGE, keep_ratio)
    assert engine.compression.keep_ratios[LANGUAGE] == 1


def test_a_scorer_of_a_package_that_is_missing_is_refused(make_engine, monkeypatch):
    monkeypatch.setitem(sys.modules, 'kvpress', None)
    with pytest.raises(ValueError, match='needs the package kvpress, which is not installed'):
        make_engine(compression_method='kvpress:KnormPress')


def test_what_cannot_be_compressed_says_why(make_engine):
    with pytest.raises(ValueError, match='engine.compressed_rows'):
        make_engine(compressed_rows=0, language_keep_ratio=0.5)
    with pytest.raises(ValueError, match='engine.compression_queries must be row for'):
        make_engine(compression_method='h2o')
    with pytest.raises(ValueError, match='compression method must be'):
        make_engine(compression_method='zip')
    with pytest.raises(ValueError, match='must be stream, row or text'):
        make_engine(compression_queries='layer')
    with pytest.raises(ValueError, match="consumer must be one of .* .got 'planner'."):
        make_engine().compression.set_keep_ratio('planner', 0.5)
