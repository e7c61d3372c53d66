"""A robot that keeps more memory rows than it reads, reads those about its instruction."""

import math
from dataclasses import replace

import numpy as np
import pytest

from embodied_kv.engine_config import EngineConfig
from embodied_kv.kv.frame_memory import before_instruction, chosen

RED = 'put the red cube into the bin'
OTHERS = (
    'put the green cylinder on the plate',
    'touch the yellow block',
    'push the blue block to the left',
    'pick up the white plate',
)
SECOND = 1_000_000_000


@pytest.fixture
def live(make_engine, observe):
    """Return a function that runs through some instructions, and returns the engine."""

    def made(*instructions, read=2, **config):
        engine = make_engine(memory_rows=read, memory_keep_ratio=1.0, **config)
        for number, instruction in enumerate(instructions):
            engine.prefill([observe(number, instruction=instruction)])
        return engine

    return made


def read_for(engine, observation):
    """Return the sequence numbers of the memory rows that the readers of a new frame read."""
    found, placed = [], engine.memory.placed

    def recorded(robot, instruction, closeness):
        rows = before_instruction(engine.memory.rows(robot), instruction)
        found.extend(chosen(rows, engine.config.memory_rows, closeness))
        return placed(robot, instruction, closeness)

    engine.memory.placed = recorded
    engine.prefill([observation])
    return [row.handle.sequence for row in found]


def test_a_frame_before_and_one_after_the_task_about_a_thing_are_read(live, observe):
    engine = live('wait', RED, *OTHERS, memory_kept_rows=16, read=3)
    wanted = 'put the red cube back where it was'
    # 5 is the newest; 0 is the last frame before the task about the red cube, 1 that of the task
    assert read_for(engine, observe(9, instruction=wanted)) == [5, 1, 0]


def test_without_more_kept_rows_the_newest_are_read(live, observe):
    engine = live('wait', RED, *OTHERS, read=3)
    wanted = 'put the red cube back where it was'
    assert read_for(engine, observe(9, instruction=wanted)) == [5, 4, 3]


def test_the_chunk_depends_on_the_chosen_rows_alone(live, observe):
    def act(engine):
        (handle,) = engine.prefill([observe(9, instruction='put the red cube back')])
        with engine.kv.acquire(handle) as lease:
            (chunk,) = engine.denoise([lease], [math.inf])
        return chunk.values

    by_words = live('wait', RED, *OTHERS, memory_kept_rows=16, read=3)
    alone = live('wait', RED, *OTHERS, memory_kept_rows=16, read=3)
    for row in alone.memory.rows(''):
        if row.handle.sequence in (2, 3, 4):
            alone.memory.forget('', row)
    newest = live('wait', RED, *OTHERS, read=3)
    assert np.array_equal(act(by_words), act(alone))
    assert not np.allclose(act(by_words), act(newest), atol=1e-4)


def test_frames_of_the_interval_are_left_out_first(make_engine, observe):
    engine = make_engine(
        memory_rows=2, memory_kept_rows=8, memory_keep_ratio=1.0, memory_interval=1.0
    )
    frames = [('wait', 0), (RED, 1), (RED, 3), (RED, 5), (OTHERS[0], 6), (OTHERS[0], 6.1)]
    for number, (instruction, stamp) in enumerate(frames):
        seen = observe(number, instruction=instruction)
        engine.prefill([replace(seen, stamp=round(stamp * SECOND))])
    assert [row.is_last for row in engine.memory.rows('')] == [False, True, False, False, True]
    late = replace(observe(9, instruction='put the red cube back'), stamp=round(6.2 * SECOND))
    assert read_for(engine, late) == [5, 3]


def test_a_limit_of_kept_rows_bounds_what_is_kept(live):
    engine = live('wait', RED, *OTHERS, memory_kept_rows=4)
    assert len(engine.memory.rows('')) == 4
    engine.kv.check_integrity()


@pytest.mark.parametrize('kept, rows', [(2, 3), (4, 0)])
def test_fewer_kept_rows_than_are_read_are_refused(kept, rows):
    with pytest.raises(ValueError, match=r'memory_kept_rows must be 0 .*\(got '):
        EngineConfig(memory_rows=rows, memory_kept_rows=kept)
