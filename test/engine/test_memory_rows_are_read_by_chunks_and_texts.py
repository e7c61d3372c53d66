"""Chunks and texts read the KV of earlier frames of their robot in front of the present frame."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.kv.frame_memory import memory_shift
from embodied_kv.kv.manager import LANGUAGE
from embodied_kv.model.processing.prompt import recall_ids

REMEMBERING = dict(memory_rows=3, memory_keep_ratio=1.0)


def act(engine, observation):
    """Return the values of the chunk of a new frame."""
    (handle,) = engine.prefill([observation])
    with engine.kv.acquire(handle) as lease:
        (chunk,) = engine.denoise([lease], [math.inf])
    return chunk.values


def speak(engine, text='Subtask:', tokens=6):
    """Return the tokens of an answer about the newest frame."""
    stream = engine.open(engine.kv.frames.current(''), text, max_tokens=tokens)
    while not stream.reason:
        engine.decode()
    return stream.tokens


def test_a_robot_without_earlier_frames_acts_as_without_memory(make_engine, observe):
    plain, other = make_engine(), make_engine(**REMEMBERING)
    assert np.array_equal(act(plain, observe(1)), act(other, observe(1)))
    assert not other.memory.rows('')


def test_an_earlier_frame_changes_the_chunk_and_the_text(make_engine, observe):
    plain, other = make_engine(), make_engine(**REMEMBERING)
    for engine in (plain, other):
        act(engine, observe(1))
    chunks = [act(engine, observe(2)) for engine in (plain, other)]
    assert len(other.memory.rows('')) == 1
    assert not np.allclose(*chunks, atol=1e-4)
    for number in range(3, 12):
        act(plain, observe(number)), act(other, observe(number))
        if speak(plain) != speak(other):
            return
    pytest.fail('no text depends on memory rows')


def test_a_copy_has_moved_keys_of_earlier_frames_the_whole_row_and_recall_tokens(
    make_engine, observe
):
    engine = make_engine(**REMEMBERING)
    rows, whole = [], engine.kv.prefixes
    for number in range(1, 4):
        (handle,) = engine.prefill([observe(number)])
        rows.append([part.clone() for part in whole.row(handle.row)])
    with engine.kv.acquire(handle, LANGUAGE) as lease:
        assert lease.is_copy
        found = [
            engine.kv.compressed.piece(layer, lease.row) for layer in range(len(whole.layers))
        ]
        recalled = len(recall_ids(engine.policy.tokenizer, observe(3).instruction))
        assert recalled > 0
        assert engine.kv.compressed.positions[lease.row] == handle.length + recalled
    wavelengths = engine.policy.model.backbone.wavelengths
    for layer, (k, v) in enumerate(found):
        keys, values = [], []
        for age, (past_k, past_v) in enumerate(reversed(rows[:-1])):
            by = memory_shift(age, engine.policy.config.prefix_tokens)
            angles = by / wavelengths[min(layer, len(wavelengths) - 1)].double()
            cos, sin = angles.cos().float(), angles.sin().float()
            first, second = past_k[layer].chunk(2, -1)
            keys.append(torch.cat([first * cos - second * sin, second * cos + first * sin], -1))
            values.append(past_v[layer])
        keys, values = (
            torch.cat([*earlier, present[layer]], 1)
            for earlier, present in zip((keys, values), rows[-1], strict=True)
        )
        torch.testing.assert_close(k[:, :-recalled], keys)
        torch.testing.assert_close(v[:, :-recalled], values, rtol=0, atol=0)
        assert k[:, -recalled:].abs().amax((0, 2)).min() > 0


def test_the_prefill_itself_reads_no_memory(make_engine, observe):
    plain, other = make_engine(), make_engine(**REMEMBERING)
    for number in range(1, 4):
        handles = [engine.prefill([observe(number)])[0] for engine in (plain, other)]
    rows = [e.kv.prefixes.row(h.row) for e, h in zip((plain, other), handles, strict=True)]
    for own, theirs in zip(*rows, strict=True):
        assert torch.equal(own, theirs)


def test_the_memory_of_a_robot_is_read_by_no_other(make_engine, observe):
    alone, shared = make_engine(**REMEMBERING), make_engine(**REMEMBERING)
    for number in range(1, 4):
        wanted = act(alone, observe(number, robot='a'))
        shared.prefill([observe(20 + number, robot='b')])
        assert np.array_equal(act(shared, observe(number, robot='a')), wanted)


def test_a_batch_of_robots_with_and_without_memory_equals_each_alone(make_engine, observe):
    engine = make_engine(**REMEMBERING)
    act(engine, observe(1, robot='a'))
    act(engine, observe(2, robot='a'))
    handles = engine.prefill([observe(3, robot='a'), observe(4, robot='b')])
    with engine.kv.frames.leases(handles) as leases:
        together = engine.denoise(leases, [math.inf] * 2)
        alone = [engine.denoise([lease], [math.inf])[0] for lease in leases]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one.values, other.values, atol=2e-5)


def test_recall_tokens_of_a_batch_equal_those_of_each_alone(make_engine, observe):
    words = 'reach the red cube', 'push', '', 'put the blue block onto the green plate'
    alone, together = (make_engine(**REMEMBERING, max_batch_robots=4, rows=16) for _ in range(2))
    first = [observe(n, robot=f'{n}') for n in range(4)]
    second = [observe(10 + n, robot=f'{n}', instruction=text) for n, text in enumerate(words)]
    together.prefill(first)
    handles = together.prefill(second)
    for handle, before, after in zip(handles, first, second, strict=True):
        alone.prefill([before])
        (own,) = alone.prefill([after])
        with (
            together.kv.acquire(handle, LANGUAGE) as lease,
            alone.kv.acquire(own, LANGUAGE) as one,
        ):
            assert lease.is_copy and one.is_copy
            for layer in range(len(together.kv.compressed.layers)):
                found, wanted = (
                    engine.kv.compressed.piece(layer, row)
                    for engine, row in ((together, lease.row), (alone, one.row))
                )
                for part, other in zip(found, wanted, strict=True):
                    torch.testing.assert_close(part, other, atol=2e-5, rtol=1e-5)
    together.kv.check_integrity()


def test_nan_of_one_batch_of_recall_tokens_does_not_reach_the_next(make_engine, observe):
    words = 'push', 'put the blue block onto the green plate'  # of two lengths
    chunks = []
    for value in (0.0, np.nan):
        engine = make_engine(**REMEMBERING, max_batch_robots=2)
        engine.prefill([observe(n, robot=f'{n}') for n in range(2)])
        with torch.inference_mode():
            engine._remembering._recaller._own.kv.fill_(value)
        later = [observe(9, robot=f'{n}', instruction=text) for n, text in enumerate(words)]
        leases = [engine.kv.acquire(handle) for handle in engine.prefill(later)]
        chunks.append([chunk.values for chunk in engine.denoise(leases, [math.inf] * 2)])
    assert np.array_equal(*chunks)


def test_recall_tokens_that_fail_leave_the_row_alone(make_engine, observe, monkeypatch):
    engine = make_engine(**REMEMBERING)
    plain = make_engine()
    act(engine, observe(1)), act(plain, observe(1))

    def failing(asked):
        raise RuntimeError('no recall')

    monkeypatch.setattr(engine._remembering._recaller, 'run', failing)
    assert np.array_equal(act(engine, observe(2)), act(plain, observe(2)))
    assert engine.kv.copies.scoring_failures == 1
    engine.kv.check_integrity()


def test_forgotten_rows_are_read_no_more(make_engine, observe):
    fresh, other = make_engine(**REMEMBERING), make_engine(**REMEMBERING)
    for number in (1, 2, 3):
        act(other, observe(number))
    act(fresh, observe(3))
    assert other.memory.forget('') == 2 and other.memory.bytes_used == 0
    assert np.array_equal(*(act(engine, observe(4)) for engine in (fresh, other)))


def test_one_row_is_forgotten_alone(make_engine, observe):
    engine = make_engine(**REMEMBERING)
    for number in (1, 2, 3):
        act(engine, observe(number))
    newest, oldest = engine.memory.rows('')
    assert engine.memory.forget('', oldest) == 1 and engine.memory.forget('', oldest) == 0
    assert engine.memory.rows('') == (newest,)


@pytest.mark.parametrize('ratio', [0.1, 0.5])
def test_a_memory_row_keeps_its_share_of_the_tokens(make_engine, observe, ratio):
    engine = make_engine(memory_rows=2, memory_keep_ratio=ratio)
    for number in (1, 2, 3):
        act(engine, observe(number))
    for row in engine.memory.rows(''):
        kept = sum(k.shape[1] for k, _ in row.layers)
        assert kept == pytest.approx(
            ratio * row.handle.length * len(row.layers), abs=len(row.layers)
        )
    assert speak(engine)
    engine.kv.check_integrity()


def test_without_room_for_a_copy_the_frame_is_read_alone(make_engine, observe):
    plain, other = make_engine(), make_engine(**REMEMBERING)
    for engine in (plain, other):
        act(engine, observe(1))
    other.kv.copies.arena._gaps.clear()
    assert np.array_equal(act(plain, observe(2)), act(other, observe(2)))
    assert other.kv.stats().allocation_failures == 1


def test_a_memory_row_that_fails_costs_no_chunk(make_engine, observe, monkeypatch):
    plain, other = make_engine(), make_engine(**REMEMBERING)
    for engine in (plain, other):
        act(engine, observe(1))
    monkeypatch.setattr(other.memory, 'keep', lambda *_: 1 / 0)
    assert np.array_equal(act(plain, observe(2)), act(other, observe(2)))
    assert other.kv.stats().scoring_failures == 1


def test_memory_rows_count_in_the_budget_and_can_be_evicted(make_engine, observe):
    engine = make_engine(**REMEMBERING)
    for number in (1, 2, 3):
        act(engine, observe(number))
    (pool,) = [p for p in engine.kv.budget.stats() if p.name == 'memory rows']
    assert pool.bytes_used == sum(row.bytes for row in engine.memory.rows('')) > 0
    offers = engine.memory.evictable()
    assert [offer.evict() for offer in offers] == [offer.bytes for offer in offers]
    assert engine.memory.bytes_used == 0 and [offer.evict() for offer in offers] == [0, 0]
    act(engine, observe(4))
    engine.kv.check_integrity()


def test_more_rows_than_the_policy_was_trained_with_are_refused(policy):
    assert Engine(policy, EngineConfig(memory_rows=-1)).config.memory_rows == 0  # untrained
    few = replace(policy, max_memory_rows=2, is_random=False)
    Engine(few, EngineConfig(memory_rows=2))
    assert Engine(few, EngineConfig(memory_rows=-1)).config.memory_rows == 2
    assert (
        Engine(replace(policy, max_memory_rows=0), EngineConfig(memory_rows=-1)).memory.most == 0
    )
    with pytest.raises(ValueError, match=r'memory_rows must be at most 2, .*\(got 3\); lower it'):
        Engine(few, EngineConfig(memory_rows=3))


def test_a_frame_keeps_its_row_until_it_may_become_a_memory_row(make_engine, observe):
    engine = make_engine(**REMEMBERING)
    for number in range(1, 4):
        act(engine, observe(number))
        handle = engine.kv.frames.current('')
        engine.kv.reduce(handle)  # as a robot does after its chunk
        assert engine.kv.frames.holds(handle)
    assert [row.handle.sequence for row in engine.memory.rows('')] == [2, 1]


def test_streams_on_earlier_frames_take_no_memory_from_actions(make_engine, observe):
    engine = make_engine(rows=4, max_batch_robots=1, streams=8, compressed_rows=0, **REMEMBERING)
    for number in range(1, 12):
        (handle,) = engine.prefill([observe(number)])
        engine.open(handle, 'Subtask:', max_tokens=80)
        engine.decode()
        with engine.kv.acquire(handle) as lease, engine.kv.reading([lease], 'action') as read:
            assert number == 1 or read[0].is_copy
    assert engine.kv.stats().allocation_failures == 0


def test_a_frame_without_scores_becomes_no_memory_row(make_engine, observe, monkeypatch):
    engine = make_engine(memory_rows=2, memory_keep_ratio=0.1)
    monkeypatch.setattr(engine.compression.prompts, 'get', lambda handle: None)
    act(engine, observe(1)), act(engine, observe(2))
    assert not engine.memory.rows('') and engine.kv.stats().allocation_failures == 1


@pytest.mark.parametrize('queries', ['row', 'text', 'stream'])
@pytest.mark.parametrize('compressed_rows', [0, 2])
def test_scores_of_frames_count_in_the_floor_of_actions(make_engine, queries, compressed_rows):
    how = dict(compression_queries=queries, compressed_rows=compressed_rows)
    plain, other = make_engine(**how), make_engine(**how, memory_rows=2)
    floors = [
        next(pool.floor for pool in engine.kv.budget.stats() if pool.name == 'prefixes')
        for engine in (plain, other)
    ]
    assert floors[1] >= floors[0] + (0 if queries == 'text' and compressed_rows else 1)
