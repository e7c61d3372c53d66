"""Each of N forks decodes the tokens that it decodes alone in its own engine."""

import pytest
from capsule_sessions import begin, capsules_of, dirty, go_on

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.session.engine_part import Branch

SEEDS = range(8)


def alone(make_engine, observe, seed):
    """Return the result of one fork in its own engine, with its seed set by the fork."""
    engine = make_engine()
    begin(engine, observe(1), 3, ('Subtask:',), temperature=1.0, seed=0)
    capsules = capsules_of(engine)
    capsules.snapshot('here')
    dirty(engine, observe)
    capsules.fork('here', [Branch(seed)])
    return list(go_on(engine).values())


def test_each_of_8_forks_equals_its_own_run(make_engine, observe):
    engine = make_engine()
    begin(engine, observe(1), 3, ('Subtask:',), temperature=1.0, seed=0)
    capsules = capsules_of(engine)
    capsules.snapshot('here')
    for stream in engine.kv.streams.live():
        engine.kv.streams.release(stream, 'cancelled')
    branches, _ = capsules.fork('here', [Branch(seed) for seed in SEEDS])
    rows = {stream.lease.row for streams in branches for stream in streams}
    assert len(rows) == 1  # all share one copy of the prefix
    said = list(go_on(engine).values())
    assert len(set(said)) > 1  # the branches differ
    for seed, words in zip(SEEDS, said, strict=True):
        assert alone(make_engine, observe, seed) == [words]
    engine.kv.check_integrity()


def test_a_fork_that_keeps_its_seed_equals_what_was_never_forked(make_engine, observe):
    engine = make_engine()
    begin(engine, observe(1), 3, ('Subtask:',), temperature=1.0, seed=0)
    capsules = capsules_of(engine)
    capsules.snapshot('here')
    capsules.fork('here', [Branch(), Branch()])
    first, second, third = go_on(engine).values()
    assert first == second == third


def test_more_branches_than_streams_are_refused(make_engine, observe):
    engine = make_engine()
    begin(engine, observe(1))
    capsules = capsules_of(engine)
    capsules.snapshot('here')
    live = engine.kv.streams.live()
    with pytest.raises(CapsuleError, match='at most 8 streams .got 9.'):
        capsules.fork('here', [Branch()] * 3)
    assert engine.kv.streams.live() == live


def test_a_fork_into_nothing_is_refused(make_engine, observe):
    engine = make_engine()
    begin(engine, observe(1))
    capsules = capsules_of(engine)
    capsules.snapshot('here')
    with pytest.raises(CapsuleError, match='at least one branch'):
        capsules.fork('here', [])
