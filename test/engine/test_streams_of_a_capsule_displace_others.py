"""Streams of a capsule take the rows of present streams if there is no room for all."""

from contextlib import ExitStack

import pytest
from capsule_sessions import QUESTIONS, begin, capsules_of

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.kv.rows import OutOfRowsError
from embodied_kv.session.engine_part import Branch


def live(engine, robot=None):
    return [s for s in engine.kv.streams.live() if robot in (None, s.lease.handle.robot)]


def frozen(engine, observe, questions=QUESTIONS):
    """Take the capsule 'c' of streams that have ended since."""
    begin(engine, observe(1, in_time=1e6), questions=questions)
    session = capsules_of(engine)
    session.snapshot('c')
    return session


def end_all(engine):
    for stream in engine.kv.streams.live():
        engine.kv.streams.release(stream, 'cancelled')


def test_a_rollback_replaces_the_streams_of_its_robot(make_engine, observe):
    engine = make_engine(streams=3)
    session = frozen(engine, observe)
    for _ in range(2):
        resumed = session.rollback('c')
        assert {s.id for s in live(engine)} == {*resumed.streams} and len(resumed.streams) == 3
    assert engine.kv.streams.evictions == 0


def test_other_streams_of_the_robot_end_before_those_of_others(make_engine, observe):
    engine = make_engine(streams=6)
    session = frozen(engine, observe)
    end_all(engine)
    begin(engine, observe(2, in_time=1e6, robot='other'))
    begin(engine, observe(3, in_time=1e6))
    session.rollback('c')
    assert len(live(engine, 'other')) == len(live(engine, '')) == 3


@pytest.mark.parametrize(('others', 'questions'), [(8, 3), (6, 3), (7, 2)])
def test_streams_of_others_end_only_for_lack_of_rows(make_engine, observe, others, questions):
    engine = make_engine(streams=8)
    session = frozen(engine, observe, QUESTIONS[:questions])
    end_all(engine)
    asked = [f'What is it, {i}?' for i in range(others)]
    begin(engine, observe(2, in_time=1e6, robot='other'), questions=asked)
    resumed = session.rollback('c')
    assert len(resumed.streams) == questions
    assert len(live(engine, 'other')) == min(others, 8 - questions)


def test_branches_displace_streams_outside_the_fork(make_engine, observe):
    engine = make_engine(streams=8)
    session = frozen(engine, observe)
    end_all(engine)
    begin(
        engine, observe(2, in_time=1e6, robot='other'), questions=[f'Is it {i}?' for i in '12345']
    )
    grown, _ = session.fork('c', [Branch(), Branch(seed=1)])
    assert [len(streams) for streams in grown] == [3, 3] and len(live(engine, 'other')) == 2


def test_streams_of_present_frames_end_at_the_bound_of_rows(make_engine, observe):
    engine = make_engine(streams=8)
    session = frozen(engine, observe, QUESTIONS[:1])
    end_all(engine)
    begin(engine, observe(2, in_time=1e6, robot='other'), questions=QUESTIONS[:1])
    engine.kv.set_limits(rows=1)
    session.fork('c', [Branch()])
    assert not live(engine, 'other') and len(live(engine)) == 1
    engine.kv.check_integrity()


def test_a_restore_without_room_for_its_rows_ends_no_stream(make_engine, observe):
    engine = make_engine(streams=3)
    session = frozen(engine, observe)
    before = [s.id for s in live(engine)]
    with ExitStack() as held:
        for number in range(3, 40):  # frames that chunks read
            try:
                (handle,) = engine.prefill([observe(number, in_time=1e6, robot=f'robot {number}')])
            except OutOfRowsError:
                break
            held.enter_context(engine.kv.acquire(handle))
        with pytest.raises(CapsuleError):
            session.rollback('c')
        assert [s.id for s in live(engine)] == before
