"""The newest row of a robot is kept between rounds, and its capsule restores that row."""

import time
from dataclasses import replace

import numpy as np
import pytest
from capsule_sessions import capsules_of

from embodied_kv.capsule.reentry import SceneSummary
from embodied_kv.serving.batch import KeptRows, serve
from embodied_kv.serving.stream_quota import ServedPart, StreamQuota
from embodied_kv.types import Guide


@pytest.fixture
def served(make_engine, observe):
    """Return an engine, its kept rows, and functions that serve a round and return a session."""
    engine = make_engine(max_batch_robots=2, rows=5)
    kept, shares = KeptRows(engine), StreamQuota(engine)

    def rounds(number, *robots):
        frames = [replace(observe(number + 10 * i), robot=r) for i, r in enumerate(robots)]
        frames = [replace(frame, sequence=number) for frame in frames]
        return serve(engine, frames, time.monotonic() + 60.0, kept)

    def capsules(robot):
        shares.join(robot)
        return capsules_of(engine, part=ServedPart(engine, robot, kept, shares))

    return engine, kept, rounds, capsules


def summary(robot, stamp=1_000_000_000):
    view = {'base': np.zeros((16, 16, 3), np.uint8)}
    return SceneSummary(np.zeros(7), view, stamp, robot)


def test_the_row_of_the_newest_round_is_kept_until_the_next_one(served):
    engine, kept, rounds, _ = served
    for number in range(3):
        rounds(number, '/a', '/b')
        assert (
            engine.kv.frames.current('/a').sequence
            == engine.kv.frames.current('/b').sequence
            == number
        )
        assert engine.kv.stats().leases == 2
    kept.clear()
    engine.kv.frames.abandon(engine.kv.reserve(time.monotonic()))
    assert engine.kv.stats().rows_free == engine.kv.stats().rows
    engine.kv.check_integrity()


def test_of_more_robots_than_rows_those_served_last_keep_theirs(served):
    engine, kept, rounds, _ = served
    assert kept.most == 3
    for robot in ('/a', '/b', '/c', '/d'):
        rounds(0, robot)
    rounds(1, '/b', '/d')  # a full batch finds its rows
    held = {
        robot for robot in ('/a', '/b', '/c', '/d') if engine.kv.frames.current(robot) is not None
    }
    assert held == {'/b', '/c', '/d'}
    engine.kv.check_integrity()


def test_a_row_that_is_dropped_is_in_no_capsule(served):
    engine, kept, rounds, capsules = served
    rounds(0, '/a', '/b')
    kept.drop('/a')
    assert capsules('/a').engine_part.freeze().facts['current'] is None
    assert engine.kv.frames.current('/b') is not None
    engine.kv.check_integrity()


def test_a_restored_row_equals_the_one_that_was_frozen(served):
    engine, _, rounds, capsules = served
    (chunk, _) = rounds(3, '/a', '/b')
    ours = capsules('/a')
    ours.snapshot('three', summary('/a'))
    rounds(4, '/a', '/b')
    ours.restore('three', summary('/a'))
    assert (
        engine.kv.frames.current('/a').sequence == 3
        and engine.kv.frames.current('/b').sequence == 4
    )
    ours.snapshot('again', summary('/a'))
    one, other = (ours.registry.get(name).tensors for name in ('three', 'again'))
    assert one.keys() == other.keys() and any(name.endswith('/k') for name in one)
    assert all(one[name].equal(other[name]) for name in one if name.startswith('session/'))
    np.testing.assert_allclose(ours.replay('again').values, chunk.values, atol=1e-5)
    rounds(5, '/a')  # the next round replaces it
    assert engine.kv.frames.current('/a').sequence == 5 and engine.kv.stats().leases == 2
    engine.kv.check_integrity()


def test_a_row_that_gave_way_is_not_in_the_capsule_and_a_restore_leaves_what_there_is(served):
    engine, kept, rounds, capsules = served
    ours = capsules('/a')
    rounds(0, '/a')
    kept.drop('/a')
    engine.kv.frames.abandon(engine.kv.reserve(time.monotonic()))
    capsule, _ = ours.snapshot('empty', summary('/a'))
    assert not any(name.startswith('session/') for name in capsule.tensors)
    rounds(1, '/a')
    ours.restore('empty', summary('/a'))
    assert engine.kv.frames.current('/a').sequence == 1
    engine.kv.check_integrity()


def test_a_restored_row_has_the_leftover_actions_of_its_capsule(make_engine, observe):
    """A row that another robot used must not give its planned actions to a capsule."""
    engine = make_engine(max_batch_robots=2, rows=5, rtc='guided')
    kept, shares = KeptRows(engine), StreamQuota(engine)
    shares.join('/a')
    ours = capsules_of(engine, part=ServedPart(engine, '/a', kept, shares))
    shape = engine.policy.config.chunk_size, engine.policy.config.action_dim

    def round_of(robot, number, value):
        guide = Guide(np.full(shape, value, np.float32), 1, np.ones(shape[0], np.float32))
        seen = replace(observe(number, robot=robot), guide=guide)
        serve(engine, [seen], time.monotonic() + 60.0, kept)

    round_of('/a', 0, 0.25)
    ours.snapshot('mine', summary('/a'))
    for number in range(8):  # each row has been another robot's
        round_of(f'/b{number}', number, 0.75)
    ours.restore('mine', summary('/a'))
    ours.snapshot('again', summary('/a'))
    one, other = (ours.registry.get(name).tensors for name in ('mine', 'again'))
    name = 'session/row/0/guide'
    assert name in one and one[name].equal(other[name])
