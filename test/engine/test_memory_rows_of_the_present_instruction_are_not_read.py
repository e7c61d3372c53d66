"""Memory rows of the present instruction are kept, and read once another one has come."""

import math
from dataclasses import replace

import numpy as np
import pytest

from embodied_kv.kv.budget import KvBudget
from embodied_kv.kv.frame_memory import before_instruction
from embodied_kv.session.frame_memory_part import FrameMemoryPart

SECOND = 1_000_000_000
ROWS = 3


@pytest.fixture
def engines(make_engine):
    """Return an engine with memory rows, and one without."""
    common = dict(memory_interval=1.0, memory_novelty=0.0)
    return make_engine(memory_rows=ROWS, memory_keep_ratio=1.0, **common), make_engine()


@pytest.fixture
def act(observe):
    """Return a function that returns the chunk of a frame per s with these instructions."""

    def acted(engine, *instructions, first=0):
        for number, instruction in enumerate(instructions, first):
            seen = replace(observe(number), instruction=instruction, stamp=number * SECOND)
            (handle,) = engine.prefill([seen])
            with engine.kv.acquire(handle) as lease:
                (chunk,) = engine.denoise([lease], [math.inf])
        return chunk.values

    return acted


def sequences(engine):
    return [row.handle.sequence for row in engine.memory.rows('')]


def test_a_robot_with_one_instruction_acts_as_without_memory(engines, act):
    remembering, plain = engines
    chunks = [act(engine, *['a'] * 5) for engine in (remembering, plain)]
    assert np.array_equal(*chunks)
    assert len(sequences(remembering)) == ROWS


def test_the_next_instruction_reads_them(engines, act):
    remembering, plain = engines
    chunks = [act(engine, *['a'] * 5, 'b') for engine in (remembering, plain)]
    assert not np.allclose(*chunks, atol=1e-4)


def test_a_chunk_of_an_instruction_depends_on_no_earlier_frame_of_it(make_engine, act):
    long, short = (
        make_engine(memory_rows=ROWS, memory_keep_ratio=1.0, memory_interval=1.0) for _ in range(2)
    )
    act(long, 'a', 'a', 'b', 'b', 'b')
    act(short, 'a', 'a', 'b')
    assert np.array_equal(act(long, 'b', first=5), act(short, 'b', first=5))


def test_an_instruction_that_is_repeated_after_another_one_reads_its_former_frames(engines, act):
    remembering, plain = engines
    chunks = [act(engine, 'a', '', 'a') for engine in (remembering, plain)]
    assert not np.allclose(*chunks, atol=1e-4)
    assert sequences(remembering) == [1, 0]


def test_rows_of_the_present_instruction_displace_none_of_those_that_are_read(engines, act):
    remembering, _ = engines
    act(remembering, 'a', 'a', 'a', 'b')
    read = before_instruction(remembering.memory.rows(''), 'b')
    assert [row.handle.sequence for row in read] == [2, 1, 0]
    act(remembering, *['b'] * 6, first=4)
    assert before_instruction(remembering.memory.rows(''), 'b') == read
    assert sequences(remembering) == [8, 7, 6, 2, 1, 0]
    remembering.kv.check_integrity()
    act(remembering, 'c', first=10)
    assert sequences(remembering) == [9, 2, 0], 'the last frames of instructions and the first'
    remembering.kv.check_integrity()


def test_without_room_rows_that_are_not_read_go_first(engines, act, make_engine):
    remembering, _ = engines
    act(remembering, 'a', 'b', 'c', *['d'] * 3)
    frozen = FrameMemoryPart(remembering, '').freeze()
    restored = make_engine(memory_rows=ROWS, memory_keep_ratio=1.0)
    restored.memory._kv_budget = KvBudget(4.5 * remembering.memory.rows('')[0].bytes)
    restored.memory._kv_budget.join(restored.memory)
    FrameMemoryPart(restored, '').resume(frozen)
    assert sequences(restored) == [5, 2, 1, 0]


def test_a_capsule_of_an_instruction_changes_no_row_that_is_read(engines, act, make_engine):
    remembering, _ = engines
    act(remembering, 'a', 'b', 'c', *['d'] * 3)
    expected = act(remembering, 'd', first=6)
    for _ in range(3):
        frozen = FrameMemoryPart(remembering, '').freeze()
        restored = make_engine(memory_rows=ROWS, memory_keep_ratio=1.0, memory_interval=1.0)
        part = FrameMemoryPart(restored, '')
        part.check_resumable(frozen)
        assert part.resume(frozen) is None
        assert np.array_equal(act(restored, 'd', first=6), expected)
        remembering = restored


def test_the_instruction_after_a_restore_decides_what_the_frame_of_the_capsule_was(
    engines, act, make_engine
):
    remembering, _ = engines
    act(remembering, 'a', 'b')
    frozen = FrameMemoryPart(remembering, '').freeze()
    for instruction, ends in (('b', False), ('c', True), ('', True)):
        restored = make_engine(memory_rows=ROWS, memory_keep_ratio=1.0)
        FrameMemoryPart(restored, '').resume(frozen)
        act(restored, instruction, first=2)
        newest = restored.memory.rows('')[0]
        assert (newest.handle.sequence, newest.until, newest.ends) == (1, instruction, ends)


def test_a_robot_without_an_instruction_remembers_what_is_done_by_hand(engines, act):
    remembering, plain = engines
    act(remembering, *[''] * 4)
    assert sequences(remembering) == [2, 1, 0]
    chunks = [act(engine, 'put it back', first=4) for engine in (remembering, plain)]
    assert sequences(remembering) == [3, 2, 0] and not np.allclose(*chunks, atol=1e-4)
