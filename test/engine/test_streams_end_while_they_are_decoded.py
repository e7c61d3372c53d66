"""Any thread may end a stream, at any moment of a decode step."""

import pytest


def interrupt(engine, monkeypatch, what):
    """Let steps of the model call `what` before they compute."""
    extend = engine.policy.model.extend

    def interrupted(batch, cache):
        what()
        return extend(batch, cache)

    monkeypatch.setattr(engine.policy.model, 'extend', interrupted)


@pytest.mark.parametrize('steps_before', [0, 1, 3])
def test_a_cancel_in_the_middle_of_a_step_ends_the_stream_after_it(
    make_engine, observe, monkeypatch, steps_before
):
    engine = make_engine()
    (handle,) = engine.prefill([observe(1)])
    stream = engine.open(handle, 'what?', max_tokens=20)
    other = engine.open(handle, 'why?', max_tokens=20)
    engine.prefill([observe(2)])  # now only the streams hold the row
    for _ in range(steps_before):
        engine.decode()
    interrupt(engine, monkeypatch, lambda: engine.kv.streams.release(stream, 'cancelled'))
    deltas = engine.decode()
    assert [delta.reason for delta in deltas if delta.stream == stream.id] == ['cancelled']
    monkeypatch.undo()
    while not other.reason:
        engine.decode()
    engine.kv.check_integrity()
    assert engine.kv.stats().leases == 0


def test_a_step_that_fails_frees_its_streams(make_engine, observe, monkeypatch):
    engine = make_engine()
    (handle,) = engine.prefill([observe(1)])
    engine.open(handle, 'what?')
    interrupt(engine, monkeypatch, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine.decode()
    assert [delta.reason for delta in engine.deltas()] == ['error']
    engine.kv.check_integrity()
    assert engine.kv.stats().leases == 0


def test_a_cancel_while_deltas_are_made_is_said_once(make_engine, observe, monkeypatch):
    engine = make_engine()
    (handle,) = engine.prefill([observe(1)])
    first, second = (engine.open(handle, 'what?', max_tokens=20) for _ in range(2))
    deltas = [delta for _ in range(4) for delta in engine.decode()]
    spell = engine.policy.tokenizer.token_bytes

    def spell_and_cancel(token):
        engine.kv.streams.release(second, 'cancelled')
        return spell(token)

    with monkeypatch.context() as patched:
        patched.setattr(engine.policy.tokenizer, 'token_bytes', spell_and_cancel)
        deltas += engine.decode()
    deltas += engine.deltas()
    said = [delta for delta in deltas if delta.stream == second.id]
    assert [delta.reason for delta in said if delta.finished] == ['cancelled']
    text = ''.join(delta.text for delta in said)
    assert text == engine.policy.tokenizer.decode(second.tokens)
    assert first.reason == ''
