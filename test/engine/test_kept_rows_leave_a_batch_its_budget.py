"""Rows that are kept between rounds are dropped where the KV budget has no room for a batch."""

import time
from dataclasses import replace

import pytest

from embodied_kv.kv.rows import OutOfRowsError
from embodied_kv.serving.batch import KeptRows, serve


@pytest.fixture
def small(make_engine):
    """Return an engine with room for 12 rows, and a KV budget for 5 of them."""
    engine = make_engine(max_batch_robots=2, reserved_rows=4, compressed_rows=0)
    engine.kv.budget.capacity = int(5.5 * engine.kv.prefixes.bytes_per_row)
    return engine, KeptRows(engine)


def test_each_robot_is_served_though_not_all_rows_fit(small, observe):
    engine, kept = small
    robots = [f'/r{i}' for i in range(8)]
    for number in range(3):
        for i in range(0, 8, 2):
            frames = [replace(observe(number), robot=robot) for robot in robots[i : i + 2]]
            results = serve(engine, frames, time.monotonic() + 60.0, kept)
            assert not any(isinstance(result, Exception) for result in results)
            assert kept.newest(robots[i]) and kept.newest(robots[i + 1])
    assert kept.newest(robots[0]) is None  # served least recently
    engine.kv.check_integrity()


def test_a_batch_that_nothing_makes_room_for_is_refused(small, observe):
    engine, kept = small
    held = [engine.prefill([observe(i, robot=f'/h{i}')])[0] for i in range(5)]
    leases = [engine.kv.acquire(handle) for handle in held]
    with pytest.raises(OutOfRowsError):
        serve(engine, [observe(9, robot='/r')], time.monotonic() + 60.0, kept)
    for lease, handle in zip(leases, held, strict=True):
        lease.release()
        engine.kv.frames.retire(handle)
    assert serve(engine, [observe(9, robot='/r')], time.monotonic() + 60.0, kept)
