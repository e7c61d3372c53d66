"""After a rollback, another question gets the answer that it gets as the first question."""

import pytest
from capsule_sessions import begin, capsules_of, go_on

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.registry import Registry
from embodied_kv.engine.fingerprint import fingerprint
from embodied_kv.session.engine_part import EnginePart


def ask(engine, stream, question):
    """Ask a question on the row of another stream, and return the answer."""
    handle = stream.lease.handle
    new = engine.open(handle, question, max_tokens=12)
    return go_on(engine)[new.id]


def test_another_question_after_the_rollback_is_answered_as_if_it_were_the_first(
    make_engine, observe
):
    cold = make_engine()
    begin(cold, observe(1))
    expected = ask(cold, cold.kv.streams.live()[0], 'Is it done?')

    engine = make_engine()
    begin(engine, observe(1))
    capsules = capsules_of(engine)
    capsules.snapshot('fork-in-the-road')
    ask(engine, engine.kv.streams.live()[0], 'What colour is the cube?')
    begin(engine, observe(2))
    capsules.rollback('fork-in-the-road')
    assert ask(engine, capsules.engine_part.streams()[0], 'Is it done?') == expected


def test_without_a_name_it_is_the_newest_boundary(make_engine, observe):
    engine = make_engine()
    begin(engine, observe(1))
    capsules = capsules_of(engine)
    for name in ('z-first', 'a-second'):
        capsules.snapshot(name)
        engine.decode()
    engine.decode()
    resumed = capsules.rollback()
    assert resumed.capsule.name == 'a-second'
    assert resumed.decision.reason == '2 steps back'


def test_a_session_without_capsules_says_so(make_engine):
    with pytest.raises(CapsuleError, match='has no capsule: take a snapshot first'):
        capsules_of(make_engine()).rollback()


def test_the_boundary_of_another_session_is_refused(make_engine, observe):
    engine = make_engine()
    registry = Registry(fingerprint(engine))
    begin(engine, observe(1, robot='left'))
    capsules_of(engine, registry, EnginePart(engine, 'left')).snapshot('left-one')
    with pytest.raises(CapsuleError, match='rolls back to its own boundaries only'):
        capsules_of(engine, registry, EnginePart(engine, 'right')).rollback('left-one')
