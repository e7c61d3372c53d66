"""Several decode steps without the host give the same tokens as single steps."""

import math

import pytest
import torch

QUESTIONS = 'what?', 'where is it?', 'why?'
HOW = dict(max_tokens=9), dict(max_tokens=7, temperature=0.9, seed=5), dict(max_tokens=8)


def said(engine, observe, how=HOW):
    """Return tokens and reasons, decode KV, and deltas of streams decoded to their ends."""
    handles = engine.prefill([observe(i, robot=f'r{i}') for i in range(len(how))])
    streams = [
        engine.open(handle, text, **each)
        for handle, text, each in zip(handles, QUESTIONS, how, strict=True)
    ]
    for _ in streams:
        engine.decode()
    tails, deltas = {}, []
    while engine.kv.streams.live():
        deltas += engine.decode()
        engine.kv.check_integrity()
        for stream in engine.kv.streams.live():
            length = int(engine.kv.decode_kv.lengths[0, stream.decode_row])
            assert length == stream.extent
            tails[stream.id] = engine.kv.decode_kv.k[:, stream.decode_row, :, :length].clone()
    return [(stream.tokens, stream.reason) for stream in streams], tails, deltas


@pytest.mark.parametrize('steps', [2, 3, 16])
def test_whatever_they_are_asked_and_however_chosen(make_engine, observe, steps):
    (wanted, _, singly), (found, _, deltas) = (
        said(make_engine(decode_steps=n), observe) for n in (1, steps)
    )
    assert found == wanted
    assert [len(tokens) for tokens, _ in found] == [9, 7, 8]
    assert len(deltas) < len(singly)


def test_their_decode_kv_is_the_same(make_engine, observe):
    how = [dict(max_tokens=14)] * 3
    (_, singly, _), (_, tails, _) = (
        said(make_engine(decode_steps=n), observe, how) for n in (1, 4)
    )
    for stream, tail in tails.items():
        length = tail.shape[2]
        assert torch.equal(tail, singly[stream][:, :, :length])


def test_one_that_says_the_end_says_nothing_after_it(make_engine, observe, monkeypatch):
    wanted, _, _ = said(make_engine(), observe)
    end = wanted[0][0][3]  # the first stream's fourth token
    first = wanted[0][0].index(end)
    engine = make_engine(decode_steps=8)
    monkeypatch.setattr(engine._decoder, '_eos', end)
    found, _, _ = said(engine, observe)
    assert found[0] == (wanted[0][0][:first], 'eos')
    for (tokens, _), (others, _) in zip(found[1:], wanted[1:], strict=True):
        assert tokens == others[: others.index(end)] if end in others else tokens == others


def test_one_that_fails_among_them_ends_there(make_engine, observe, monkeypatch):
    wanted, _, _ = said(make_engine(), observe)
    engine, calls = make_engine(decode_steps=4), []
    extend = engine.policy.model.extend

    def broken(ids, view):
        logits = extend(ids, view).clone()
        calls.append(len(ids))
        if calls.count(3) == 2:  # the second step with all three streams
            logits[1] = math.nan
        return logits

    monkeypatch.setattr(engine.policy.model, 'extend', broken)
    found, _, _ = said(engine, observe)
    assert (found[0], found[2]) == (wanted[0], wanted[2])
    assert found[1] == (wanted[1][0][:2], 'error')


def test_no_more_are_taken_than_fit_the_slack(make_engine):
    budget = make_engine(time_budget=True, idle_unit_ms=1000.0).budget
    budget.latency.observe('decode', 0.01, 2)
    budget.frame_began(100.0)
    left = budget.slack(100.0)
    assert budget.times(100.0, 'decode', 2, 100) == int(left / 0.01) > 2
    assert budget.times(100.0, 'decode', 2, 3) == 3
    assert budget.times(100.0 + left - 0.005, 'decode', 2, 3) == 1
