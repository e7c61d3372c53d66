"""`serve`: each robot of a batch gets the chunk that it gets alone, also if another one fails."""

import time
from dataclasses import replace

import numpy as np
import pytest

from embodied_kv.serving.batch import batch_seconds, chunk_bytes, serve
from embodied_kv.types import Guide


def later():
    return time.monotonic() + 60.0


def frames(observe, count):
    return [replace(observe(n), robot=f'/r{n}') for n in range(count)]


def test_a_batch_equals_each_alone_and_holds_no_row(make_engine, observe):
    engine = make_engine(max_batch_robots=3)
    robots = frames(observe, 3)
    alone = [serve(engine, [robot], later())[0] for robot in robots]
    together = serve(engine, robots, later())
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one.values, other.values, atol=1e-5)
        np.testing.assert_allclose(one.updates, other.updates, atol=1e-5)
        assert (one.stamp, one.sequence) == (other.stamp, other.sequence)
    assert engine.kv.stats().leases == 0
    engine.kv.frames.abandon(engine.kv.reserve(later()))
    assert engine.kv.stats().rows_free == engine.kv.stats().rows


def test_a_frame_that_fails_leaves_the_others_their_chunks(make_engine, observe):
    engine = make_engine(max_batch_robots=3)
    robots = frames(observe, 3)
    robots[1] = replace(robots[1], state=robots[1].state[:2])
    good, bad, other = serve(engine, robots, later())
    assert isinstance(bad, Exception)
    for chunk, robot in ((good, robots[0]), (other, robots[2])):
        (alone,) = serve(engine, [robot], later())
        np.testing.assert_allclose(chunk.values, alone.values, atol=1e-5)
    engine.kv.check_integrity()


def test_each_robot_of_a_batch_is_guided_by_its_own(make_engine, observe, monkeypatch):
    engine, told = make_engine(max_batch_robots=3), []
    denoise = engine.denoise

    def listening(leases, deadlines, noises=None, guides=()):
        told.append({lease.handle.robot: g for lease, g in zip(leases, guides, strict=True)})
        return denoise(leases, deadlines, noises, guides)

    monkeypatch.setattr(engine, 'denoise', listening)
    c = engine.policy.config
    actions, weights = np.zeros((c.chunk_size, c.action_dim)), np.ones(c.chunk_size)
    a, b = Guide(actions, 1, weights), Guide(actions, 4, weights)
    robots = [
        replace(robot, guide=guide)
        for robot, guide in zip(frames(observe, 4), (a, None, b, b), strict=True)
    ]
    serve(engine, robots[:3], later())
    assert told == [{'/r0': a, '/r1': None, '/r2': b}]
    robots[0] = replace(robots[0], state=robots[0].state[:2])  # left out; the others are served
    serve(engine, robots[:3], later())
    assert told[1:] == [{'/r1': None, '/r2': b}]


def test_where_the_engine_can_serve_nobody_its_error_is_raised(make_engine, observe):
    engine = make_engine(max_batch_robots=2)
    engine.denoise = lambda *_: 1 / 0
    for robots in (1, 2):
        with pytest.raises(ZeroDivisionError):
            serve(engine, frames(observe, robots), later())


def test_where_every_observation_is_bad_each_hears_so_and_the_engine_has_not_failed(
    make_engine, observe
):
    engine = make_engine(max_batch_robots=2)
    for count in (1, 2):
        robots = [replace(frame, state=frame.state[:2]) for frame in frames(observe, count)]
        results = serve(engine, robots, later())
        assert [f"robot '/r{n}'" in str(result) for n, result in enumerate(results)] == [
            True
        ] * count


def test_too_late_is_what_the_robot_hears(make_engine, observe):
    engine = make_engine(time_budget=True)
    (late,) = serve(engine, frames(observe, 1), time.monotonic() - 1.0)
    assert isinstance(late, TimeoutError) and 'no time was left' in str(late)


def test_batches_are_measured_up_to_the_robots(make_engine):
    engine = make_engine(max_batch_robots=3)
    seconds = batch_seconds(engine, repeats=1)
    assert list(seconds) == [1, 2, 3]
    assert list(seconds.values()) == sorted(seconds.values()) and seconds[1] > 0
    assert engine.kv.stats().leases == 0
    assert chunk_bytes(engine.policy.config) == 4 * 6 * 8
