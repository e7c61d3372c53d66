"""A robot that prefills its own frames freezes only the rows that its live streams read."""

import pytest
from capsule_sessions import begin, capsules_of, dirty, go_on

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.session.engine_part import EnginePart


def session(engine, freezes_frame=False):
    return capsules_of(engine, part=EnginePart(engine, freezes_frame=freezes_frame))


def test_without_streams_a_capsule_has_no_row(make_engine, observe):
    engine = make_engine()
    engine.prefill([observe(4)])
    row = engine.kv.prefixes.bytes_used
    without, _ = session(engine).snapshot('home')
    whole, _ = session(engine, freezes_frame=True).snapshot('home')
    assert row > 0 and whole.bytes - without.bytes >= row
    assert without.boundary.stamp == observe(4).stamp


def test_streams_on_an_earlier_frame_bring_its_row_and_go_on(make_engine, observe):
    engine = make_engine()
    begin(engine, observe(1))
    engine.prefill([observe(2)])
    capsules = session(engine)
    capsules.snapshot('here')
    frozen = capsules.engine_part.freeze().facts
    assert [row['sequence'] for row in frozen['rows']] == [1] and frozen['current'] is None
    wanted = sorted(go_on(engine).values())
    dirty(engine, observe)
    capsules.rollback('here')
    assert sorted(go_on(engine).values()) == wanted
    engine.kv.check_integrity()


def test_such_a_capsule_cannot_be_replayed(make_engine, observe):
    engine = make_engine()
    engine.prefill([observe(4)])
    capsules = session(engine)
    capsules.snapshot('home')
    with pytest.raises(CapsuleError, match='on a robot that prefills its own frames'):
        capsules.replay('home')
