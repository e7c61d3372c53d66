"""Under a KV budget a session is restored completely or not at all, without evicting a stream."""

import pytest
from capsule_sessions import begin, capsules_of, go_on

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.session.engine_part import Branch


@pytest.fixture
def session(make_engine, observe):
    """Return an engine, a session with a capsule of two streams, and the bytes of each."""
    engine = make_engine()
    begin(engine, observe(1), 3, ('Subtask:', 'Narrate:'))
    capsules = capsules_of(engine)
    capsules.snapshot('here')
    streams = engine.kv.streams.live()
    sizes = [engine.kv.streams.bytes_for(stream.query) for stream in streams]
    return engine, capsules, sizes


def end_all(engine):
    for stream in engine.kv.streams.live():
        engine.kv.streams.release(stream, 'cancelled')
    engine.deltas()


def bound(engine, more):
    """Set the KV budget to `more` bytes above the floor, or the reserved bytes, of the frames."""
    pools = {pool.name: pool for pool in engine.kv.budget.stats()}
    kept = max(pools['prefixes'].floor, pools['prefixes'].bytes_reserved)
    engine.kv.budget.capacity = kept + more


def in_use(engine):
    return [pool.bytes_used for pool in engine.kv.pools]


def test_a_fork_that_fits_in_part_is_refused_and_leaves_nothing(session):
    engine, capsules, (first, second) = session
    end_all(engine)
    before = in_use(engine)
    bound(engine, first + second // 2)
    with pytest.raises(CapsuleError, match='no room'):
        capsules.fork('here', [Branch()])
    assert engine.kv.streams.live() == [] and in_use(engine) == before
    assert engine.kv.streams.evictions == 0
    engine.kv.check_integrity()
    engine.kv.budget.check_integrity()


def test_all_branches_live_or_none_does(session):
    engine, capsules, (first, second) = session
    end_all(engine)
    for branches in (1, 2, 3):
        bound(engine, 2 * (first + second) + second)
        if branches > 2:
            with pytest.raises(CapsuleError):
                capsules.fork('here', [Branch()] * branches)
        else:
            grown, _ = capsules.fork('here', [Branch()] * branches)
            assert not any(stream.reason for streams in grown for stream in streams)
        assert len(engine.kv.streams.live()) == (0 if branches > 2 else 2 * branches)
        engine.kv.budget.check_integrity()
        end_all(engine)


def test_what_came_back_may_go_afterwards(session):
    engine, capsules, (first, second) = session
    expected = [*go_on(engine).values()]
    bound(engine, first + second)
    capsules.rollback('here')
    assert len(engine.kv.streams.evictable()) == 2
    assert [tokens for _, tokens in go_on(engine).values()] == [tokens for _, tokens in expected]
