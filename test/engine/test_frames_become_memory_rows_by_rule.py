"""The last frame with each instruction, and a frame of each interval, become memory rows."""

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

from embodied_kv.engine.remembering import novelty
from embodied_kv.engine.warmup import warm_up

SECOND = 1_000_000_000


@pytest.fixture
def see(make_engine, observe):
    """Return a function that prefills frames (instruction, stamp in s) and returns memory rows.

    views: images of another frame, by the number of the frame; the images of all others differ.
    """

    def made(frames, views=MappingProxyType({}), **config):
        usual = dict(memory_rows=8, memory_keep_ratio=1.0, memory_interval=5.0)
        engine = make_engine(**usual | config)
        for number, (instruction, stamp) in enumerate(frames):
            seen = observe(views.get(number, number), instruction=instruction)
            seen = replace(seen, sequence=number)
            engine.prefill([replace(seen, stamp=round(stamp * SECOND))])
        engine.kv.check_integrity()
        return [
            (row.handle.sequence, row.instruction, row.is_last) for row in engine.memory.rows('')
        ]

    return made


def test_the_last_frame_with_an_instruction_is_kept(see):
    frames = [('a', 0), ('a', 0.1), ('b', 0.2), ('b', 0.3), ('c', 0.4)]
    kept = see([('z', -0.1), *frames])
    assert kept == [(4, 'b', True), (2, 'a', True), (0, 'z', True)]


def test_a_frame_is_kept_after_each_interval(see):
    kept = see([('a', i) for i in range(13)])
    assert kept == [(10, 'a', False), (5, 'a', False), (0, 'a', True)]


def test_above_the_limit_frames_of_the_interval_go_first_the_oldest_first(see):
    frames = [('a', 0), ('b', 1), ('b', 7), ('b', 13), ('b', 19), ('b', 25)]
    assert [n for n, _, _ in see(frames, memory_rows=2)] == [4, 3, 0]
    ended = [*frames, ('c', 26)]
    assert [n for n, _, _ in see(ended, memory_rows=2)] == [5, 0]
    assert [n for n, _, _ in see(ended, memory_rows=3)] == [5, 4, 0]


def test_the_newest_frame_is_kept_even_if_all_others_ended_an_instruction(see):
    frames = [('a', 0), ('b', 1), ('c', 2), ('c', 9), ('c', 10)]
    assert [n for n, _, _ in see(frames, memory_rows=1)] == [3, 1]


def test_a_frame_of_the_interval_that_shows_nothing_new_is_not_kept(see):
    frames, views = [('a', i) for i in range(13)], dict.fromkeys(range(12), 0)
    assert [n for n, _, _ in see([*frames, ('a', 13)], views)] == [12, 0]
    assert [n for n, _, _ in see(frames, views, memory_novelty=0.0)] == [10, 5, 0]


def test_the_last_frame_with_an_instruction_is_kept_even_if_it_shows_nothing_new(see):
    frames = [('a', 0), ('b', 1), ('c', 2)]
    assert [n for n, _, _ in see(frames, dict.fromkeys(range(3), 0))] == [1, 0]


def test_novelty_is_a_change_of_thumbnails_beyond_noise():
    scene = np.full((64, 64, 3), 120, np.uint8)
    noise = np.random.default_rng(0).integers(-8, 9, scene.shape)
    moved = scene.copy()
    moved[20:24, 20:24] = 255
    assert novelty([scene], [(scene + noise).astype(np.uint8)]) < 0.05
    assert novelty([scene, scene], [scene, moved]) > 0.5
    assert novelty([scene], [scene, scene]) == novelty([scene], [scene[:32]]) == 1.0
    assert novelty([scene[:8, :8]], [scene[:8, :8]]) == 0.0


def test_a_frame_that_is_prefilled_again_is_no_memory_row_of_itself(make_engine, observe):
    engine = make_engine(memory_rows=2, memory_keep_ratio=1.0)
    for number in (1, 1, 2, 2):
        engine.prefill([observe(number, instruction='a')])
    assert [row.handle.sequence for row in engine.memory.rows('')] == [1]


def test_a_frame_without_finite_keys_is_not_kept(make_engine, observe):
    engine = make_engine(memory_rows=2, memory_keep_ratio=1.0)
    (handle,) = engine.prefill([observe(1)])
    engine.kv.prefixes.v[-1, handle.row, 0, 3, 0] = np.nan
    engine.prefill([observe(2)])
    assert engine.memory.rows('') == () and engine.kv.stats().scoring_failures == 1
    engine.prefill([observe(3)])
    assert [row.handle.sequence for row in engine.memory.rows('')] == [2]


def test_a_frame_without_room_in_the_budget_is_counted(make_engine, observe, monkeypatch):
    engine = make_engine(memory_rows=2, memory_keep_ratio=1.0)
    monkeypatch.setattr(engine.memory, 'keep', lambda *_: False)
    engine.prefill([observe(1)])
    engine.prefill([observe(2)])
    assert engine.kv.stats().allocation_failures == 1


def test_frames_of_other_robots_free_no_frame_that_may_become_a_memory_row(make_engine, observe):
    engine = make_engine(memory_rows=2, memory_keep_ratio=1.0)
    engine.prefill([observe(1, robot='a', in_time=-10.0)])
    for number in range(2, 6):
        engine.prefill([observe(number, robot='b', in_time=-10.0)])
    engine.prefill([observe(7, robot='a')])
    assert [row.handle.sequence for row in engine.memory.rows('a')] == [1]


def test_frames_of_other_robots_take_its_row_if_none_is_free(make_engine, observe):
    engine = make_engine(memory_rows=2, memory_keep_ratio=1.0, rows=4, max_batch_robots=2)
    for number in range(1, 9):
        engine.prefill([observe(number, robot=str(number), in_time=-10.0)])
    assert engine.kv.frames.current('1') is None and engine.kv.frames.current('8')
    engine.kv.check_integrity()


def test_warm_up_reads_a_memory_row_and_leaves_nothing(make_engine, monkeypatch):
    engine, given = make_engine(memory_rows=2, memory_keep_ratio=0.5), []
    copy = engine.kv.keep_copy
    monkeypatch.setattr(engine.kv, 'keep_copy', lambda *a: (given.append(a), copy(*a)))
    warm_up(engine)
    assert given and engine.memory.bytes_used == 0
    assert engine.kv.frames.rows_free == engine.config.rows


def test_a_clock_that_jumps_back_keeps_frames_again(see):
    kept = see([('a', 100), ('a', 101), ('a', 1), ('a', 2), ('a', 7), ('a', 8)])
    assert [number for number, _, _ in kept] == [4, 2, 0]


def test_no_frame_is_kept_twice(see, make_engine, observe):
    engine = make_engine(memory_rows=4, memory_keep_ratio=1.0)
    engine.prefill([observe(0)])
    with pytest.raises(ValueError):
        engine.prefill([replace(observe(1), images=())])
    engine.prefill([observe(1)])
    assert [row.handle.sequence for row in engine.memory.rows('')] == [0]


def test_without_memory_rows_nothing_is_kept(see):
    assert see([('a', 0), ('b', 10), ('c', 20)], memory_rows=0) == []
