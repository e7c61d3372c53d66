"""Deferred choice: a stream decodes n tokens from its whole prefix before it is compressed."""

from unittest import mock

import pytest
import torch
from capsule_sessions import capsules_of, dirty, go_on

from embodied_kv.capsule.disk import Disk
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier
from embodied_kv.engine.fingerprint import fingerprint
from embodied_kv.engine.warmup import warm_up
from embodied_kv.session.engine_part import Branch

QUESTIONS = ('Subtask:', 'What is in the gripper?', 'Narrate: and what for?')
SAID = 10
KEPT = dict(language_keep_ratio=0.3, compressed_rows=4)


def opened(engine, frame, questions=QUESTIONS, **how):
    (handle,) = engine.prefill([frame])
    return [engine.open(handle, q, max_tokens=SAID, **how) for q in questions]


def say(engine, frame, questions=QUESTIONS, **how):
    streams = opened(engine, frame, questions, **how)
    while any(not stream.reason for stream in streams):
        engine.decode()
    engine.kv.check_integrity()
    return [stream.tokens for stream in streams]


@pytest.mark.parametrize('name', ['vl_cache', 'streaming_llm'])
@pytest.mark.parametrize('after', [0, 1, 3, 4])
def test_tokens_up_to_the_choice_are_those_of_the_whole_prefix(make_engine, observe, after, name):
    whole = say(make_engine(), observe(1))
    said = say(
        make_engine(compression_after_tokens=after, compression_method=name, **KEPT), observe(1)
    )
    assert [tokens[: after + 1] for tokens in said] == [tokens[: after + 1] for tokens in whole]
    assert said != whole


@pytest.mark.parametrize('after', [0, 2])
def test_each_stream_is_compressed_when_it_has_said_as_much(make_engine, observe, after):
    engine = make_engine(compression_after_tokens=after, **KEPT)
    streams = opened(engine, observe(1))
    while any(not stream.reason for stream in streams):
        engine.decode()
        for stream in streams:
            assert stream.reason or stream.lease.is_copy == (len(stream.tokens) > after)
    engine.kv.check_integrity()


@torch.inference_mode()
def test_the_choice_is_by_the_question_and_the_answer(make_engine, observe):
    """A longer question that ends in the answer so far would keep the same tokens."""
    engine = make_engine(compression_after_tokens=2, **KEPT)
    (stream,) = opened(engine, observe(1), QUESTIONS[:1])
    while not stream.lease.is_copy:
        engine.decode()
    kept = [part.clone() for part in engine.kv.compressed.block(stream.lease.row)]
    other = make_engine(**KEPT)
    (handle,) = other.prefill([observe(1)])
    ids = [*stream.query.ids, *stream.tokens[:2]]
    longer = other.kv.create(handle, type(stream.query)('', ids, SAID))
    other.decode()
    assert longer.tokens[0] == stream.tokens[2]
    block = other.kv.compressed.block(longer.lease.row)
    assert all(torch.equal(own, part) for own, part in zip(kept, block, strict=True))


@pytest.mark.parametrize('steps', [1, 4])
def test_a_batch_says_what_each_says_alone(make_engine, observe, steps):
    config = dict(compression_after_tokens=2, decode_steps=steps, **KEPT)
    together = say(make_engine(**config), observe(1))
    alone = [say(make_engine(**config), observe(1), [question])[0] for question in QUESTIONS]
    assert together == alone


@pytest.mark.parametrize('most', [1, 2, 3, 4])
def test_an_answer_that_ends_before_the_choice_takes_no_step_too_many(
    make_engine, observe, monkeypatch, most
):
    """Question and answer fill the row of decode KV exactly."""
    engine = make_engine(compression_after_tokens=4, decode_steps=4, decode_tokens=24, **KEPT)
    (handle,) = engine.prefill([observe(1)])
    question = 'x' * (engine.kv.decode_kv.max_tokens - most)
    stream, taken = engine.open(handle, question, max_tokens=most), []
    step = engine._decoder.step
    monkeypatch.setattr(
        engine._decoder, 'step', lambda streams, n: taken.append(n) or step(streams, n)
    )
    while not stream.reason:
        engine.decode()
    assert (len(stream.tokens), stream.reason) == (most, 'length')
    assert sum(taken) == most - 1
    engine.kv.check_integrity()


@pytest.mark.parametrize('by', ['text', 'stream'])
@pytest.mark.parametrize('work', [1, 4, 6, 12])  # units: before, between, after the choices
def test_restored_streams_say_what_they_would_have_said(make_engine, observe, by, work):
    engine = make_engine(compression_after_tokens=2, compression_queries=by, **KEPT)
    opened(engine, observe(1), temperature=1.0, seed=5)
    for _ in range(work):
        engine.decode()
    capsules = capsules_of(engine)
    capsules.snapshot('here')
    expected = go_on(engine)
    dirty(engine, observe)
    capsules.rollback('here')
    assert list(go_on(engine).values()) == list(expected.values())
    engine.kv.check_integrity()


def test_another_engine_chooses_alike_from_the_disk(make_engine, observe, tmp_path):
    engine = make_engine(compression_after_tokens=3, **KEPT)
    opened(engine, observe(1))
    for _ in range(4):
        engine.decode()
    saved = Registry(fingerprint(engine), disk=Disk(tmp_path))
    capsules_of(engine, saved).snapshot('here', tier=Tier.DISK)
    saved.close()
    expected = go_on(engine)
    other = make_engine(compression_after_tokens=3, **KEPT)
    other.prefill([observe(5)])
    there = capsules_of(other, Registry(fingerprint(other), disk=Disk(tmp_path)))
    there.fork('here', [Branch()])
    assert list(go_on(other).values()) == list(expected.values())
    other.kv.check_integrity()


def test_without_room_a_stream_goes_on_with_its_row(make_engine, observe):
    engine = make_engine(compression_after_tokens=1, compressed_rows=1, language_keep_ratio=0.9)
    streams = opened(engine, observe(1))
    while any(len(stream.tokens) < 3 for stream in streams):
        engine.decode()
    assert [stream.lease.is_copy for stream in streams] == [True, False, False]
    assert engine.kv.copies.allocation_failures == 2
    engine.kv.check_integrity()


def test_a_choice_goes_into_the_slack_only_if_one_of_its_length_fits(make_engine, observe):
    engine = make_engine(time_budget=True, compression_after_tokens=4, **KEPT)
    (stream,) = opened(engine, observe(1), ['what?'])  # bucket of 8 tokens; with the answer, of 16
    while len(stream.tokens) < 4:
        engine.decode()
    engine.latency.clear()
    for size, seconds in ((8, 0.001), (16, 0.050)):
        engine.latency.observe('begin', seconds, size)
    until_next = engine.budget._last_frame + engine.budget.period - engine.budget.margin
    assert not engine.decode_fits(until_next - 0.040) and engine.decode_fits(until_next - 0.060)


def test_warm_up_goes_through_the_choice(make_engine):
    engine = make_engine(time_budget=True, streams=2, compression_after_tokens=2, **KEPT)
    warm_up(engine)
    assert {'begin', 'decode'} <= set(engine.latency._measured)
    assert set(engine.latency._measured['decode']) >= {2}
    assert engine.kv.stats().streams == engine.kv.stats().compressed == 0
    engine.kv.check_integrity()


def test_warm_up_goes_through_the_choice_of_a_policy_that_says_nothing(make_engine, monkeypatch):
    engine = make_engine(streams=2, decode_tokens=24, compression_after_tokens=3, **KEPT)
    monkeypatch.setattr(engine._decoder, '_eos', mock.ANY)  # equals any token
    begin, begun = engine._decoder.begin, set()

    def counted(stream):
        begun.add((len(stream.query.ids), len(stream.tokens)))
        return begin(stream)

    monkeypatch.setattr(engine._decoder, 'begin', counted)
    warm_up(engine)
    assert begun >= {(ids, said) for ids in (8, 16, 20) for said in (0, 3)}
    assert engine.kv.stats().streams == engine.kv.stats().leases == 0
    engine.kv.check_integrity()


@pytest.mark.parametrize('after', [0, 4])
def test_the_smallest_engine_with_a_choice_warms_up(make_engine, after):
    least = dict(max_batch_robots=1, rows=3, streams=1, decode_tokens=8, decode_steps=4)
    engine = make_engine(**least, compression_after_tokens=after, **KEPT)
    warm_up(engine)
    engine.kv.check_integrity()


def test_what_is_chosen_once_a_frame_waits_for_no_answer(make_engine, observe):
    engine = make_engine(compression_after_tokens=2, compression_queries='row', **KEPT)
    assert all(stream.lease.is_copy for stream in opened(engine, observe(1)))


def test_so_long_a_wait_is_refused(make_engine):
    with pytest.raises(
        ValueError, match='engine.compression_after_tokens must be from 0 to 4 .got 5'
    ):
        make_engine(compression_after_tokens=5)
