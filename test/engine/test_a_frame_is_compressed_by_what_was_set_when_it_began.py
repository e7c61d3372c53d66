"""A keep ratio that changes while a frame or a question is computed applies to later ones.

A deferred choice uses the keep ratio that is set when the choice is due.
"""

import pytest

from embodied_kv.engine.compression import ACTION
from embodied_kv.kv.manager import LANGUAGE


def during(monkeypatch, owner, name, what):
    """Patch a method so that it calls `what` before it returns."""
    method = getattr(owner, name)

    def interrupted(*arguments, **named):
        result = method(*arguments, **named)
        what()
        return result

    monkeypatch.setattr(owner, name, interrupted)


@pytest.mark.parametrize('before, after', [(1.0, 0.3), (0.3, 1.0)])
@pytest.mark.parametrize('consumer', [LANGUAGE, ACTION])
def test_of_a_frame(make_engine, observe, monkeypatch, consumer, before, after):
    engine = make_engine(compression_queries='row')
    engine.compression.set_keep_ratio(consumer, before)
    change = lambda: engine.compression.set_keep_ratio(consumer, after)  # noqa: E731
    during(monkeypatch, engine.policy.model, 'prefill', change)
    (handle,) = engine.prefill([observe(1)])
    assert (engine.kv.copies.assigned(handle, consumer) is not None) == (before < 1)
    (handle,) = engine.prefill([observe(2)])
    assert (engine.kv.copies.assigned(handle, consumer) is not None) == (after < 1)


@pytest.mark.parametrize('before, after', [(1.0, 0.3), (0.3, 1.0)])
@pytest.mark.parametrize('by', ['stream', 'text'])
def test_of_a_question(make_engine, observe, monkeypatch, by, before, after):
    engine = make_engine(compression_queries=by, language_keep_ratio=before)
    (handle,) = engine.prefill([observe(1)])
    change = lambda: engine.compression.set_keep_ratio(LANGUAGE, after)  # noqa: E731
    during(monkeypatch, engine.policy.model, 'extend', change)
    streams = []
    for _ in range(2):
        streams.append(engine.open(handle, 'where is it?', max_tokens=8))
        engine.decode()
    assert [stream.lease.is_copy for stream in streams] == [before < 1, after < 1]


@pytest.mark.parametrize('before, after', [(1.0, 0.3), (0.3, 1.0)])
@pytest.mark.parametrize('by', ['stream', 'text'])
def test_of_an_answer_that_waits_for_its_choice(make_engine, observe, by, before, after):
    engine = make_engine(
        compression_queries=by, compression_after_tokens=2, language_keep_ratio=before
    )
    (handle,) = engine.prefill([observe(1)])
    chosen = engine.open(handle, 'where is it?', max_tokens=12)
    while len(chosen.tokens) < 3:
        engine.decode()
    waiting = engine.open(handle, 'where is it?', max_tokens=12)
    engine.decode()
    assert len(waiting.tokens) == 1
    engine.compression.set_keep_ratio(LANGUAGE, after)
    while len(waiting.tokens) < 4:
        engine.decode()
    assert [stream.lease.is_copy for stream in (chosen, waiting)] == [before < 1, after < 1]
    engine.kv.check_integrity()
