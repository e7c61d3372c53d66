"""A restored robot, also in another process, reads the memory rows of the capsule."""

import math
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
from capsule_sessions import QUESTIONS, begin, capsules_of, dirty, go_on

from embodied_kv.capsule.capsule import CapsuleError, FrozenPart
from embodied_kv.capsule.disk import Disk
from embodied_kv.capsule.reentry import SceneSummary
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier
from embodied_kv.engine.fingerprint import fingerprint
from embodied_kv.errors import ErrorCode
from embodied_kv.kv.budget import KvBudget
from embodied_kv.session.frame_memory_part import FrameMemoryPart

REMEMBERING = dict(memory_rows=3, memory_keep_ratio=0.5)
SCENE = SceneSummary(np.zeros(7), {'front': np.zeros((16, 16, 3), np.uint8)}, 10_000_000_000)


def remembering(make_engine, **config):
    engine = make_engine(**REMEMBERING | config)
    return engine, FrameMemoryPart(engine)


def session_of(engine, part, registry=None):
    session = capsules_of(engine, registry)
    session.register(part)
    return session


def act(engine, observation):
    (handle,) = engine.prefill([observation])
    with engine.kv.acquire(handle) as lease:
        (chunk,) = engine.denoise([lease], [math.inf])
    return chunk.values


def test_a_new_process_acts_on_the_same_memory(make_engine, observe, tmp_path):
    first, part = remembering(make_engine)
    for number in (1, 2, 3):
        act(first, observe(number))
    expected = [(r.handle.sequence, r.instruction, r.is_last) for r in part.rows()]
    assert [sequence for sequence, *_ in expected] == [3, 2, 1]
    with closing(Registry(fingerprint(first), disk=Disk(tmp_path))) as registry:
        session_of(first, part, registry).snapshot('here', SCENE, Tier.DISK)
    other, part = remembering(make_engine)
    act(other, observe(9))
    with closing(Registry(fingerprint(other), disk=Disk(tmp_path))) as registry:
        session_of(other, part, registry).restore('here', SCENE)
    rows = [(r.handle.sequence, r.instruction, r.is_last) for r in other.memory.rows('')]
    assert rows == expected
    assert np.array_equal(*(act(engine, observe(4)) for engine in (first, other)))


def test_restored_streams_continue_token_for_token(make_engine, observe):
    engine, part = remembering(make_engine)
    act(engine, observe(1))
    begin(engine, observe(2))
    assert all(stream.lease.is_copy for stream in engine.kv.streams.live())
    session = session_of(engine, part)
    session.snapshot('here')
    expected = go_on(engine)
    dirty(engine, observe)
    session.rollback('here')
    assert list(go_on(engine).values()) == list(expected.values())
    assert len(expected) == len(QUESTIONS)
    engine.kv.check_integrity()


def test_a_capsule_on_the_device_refers_to_the_rows_without_a_copy(make_engine, observe):
    engine, part = remembering(make_engine)
    act(engine, observe(1)), act(engine, observe(2))
    (row,) = engine.memory.rows('')
    session = session_of(engine, part)
    capsule, _ = session.snapshot('here')
    assert capsule.tensors['memory rows/1/k'].data_ptr() == row.k.data_ptr()
    engine.memory.forget('')
    session.rollback('here')
    assert engine.memory.rows('')[1].k.data_ptr() == row.k.data_ptr()


def test_the_newest_frame_becomes_a_memory_row_of_the_capsule_alone(make_engine, observe):
    engine, part = remembering(make_engine)
    act(engine, observe(1))
    assert [row.handle.sequence for row in part.rows()] == [1]
    assert engine.memory.rows('') == ()
    act(engine, observe(2)), act(engine, observe(3))
    session = session_of(engine, part)
    session.snapshot('here')
    session.rollback('here')
    act(engine, observe(4))
    assert [row.handle.sequence for row in engine.memory.rows('')] == [3, 2, 1]


def test_a_forgotten_newest_frame_does_not(make_engine, observe):
    engine, part = remembering(make_engine)
    act(engine, observe(1)), act(engine, observe(2))
    assert [row.handle.sequence for row in part.rows()] == [2, 1]
    assert engine.forget('') == 1
    assert part.rows() == ()


def test_without_room_for_its_scores_the_newest_frame_is_left_out(make_engine, observe):
    engine, part = remembering(make_engine)
    act(engine, observe(1)), act(engine, observe(2))
    engine.compression.kept_tokens = lambda *_: None
    assert [row.handle.sequence for row in part.rows()] == [1]


def test_a_robot_without_memory_rows_restores_none(make_engine, observe):
    engine, part = remembering(make_engine)
    session = session_of(engine, part)
    session.snapshot('empty')
    act(engine, observe(1)), act(engine, observe(2))
    assert engine.memory.rows('')
    session.rollback('empty')
    assert engine.memory.rows('') == ()


def test_rows_without_room_are_left_out_with_a_remark(make_engine, observe):
    engine, part = remembering(make_engine)
    for number in range(4):
        act(engine, observe(number))
    frozen = part.freeze()
    other, few = remembering(make_engine, memory_rows=2)
    few.check_resumable(frozen)
    assert few.resume(frozen) == '3 of 4 memory rows are restored: the limit is 2'
    assert [r.handle.sequence for r in other.memory.rows('')] == [3, 2, 1]


def broken(frozen, **facts):
    return FrozenPart(frozen.tensors, [frozen.facts[0] | facts])


@pytest.mark.parametrize(
    'facts',
    [
        {'budgets': [1]},
        {'budgets': [-1, 2]},
        {'budgets': 'many'},
        {'budgets': [10**9] * 2},
        {'length': 0},
        {'length': 1.5},
        {'cost': math.nan},
        {'cost': -1.0},
        {'stamp': 2**63},
        {'pictures': -1},
        {'pictures': 9},
        {'sequence': 'first'},
        {'sequence': -1},
        {'stamp': 2**62},
        {'until': 1},
        {'is_first': 1},
        {'instruction': b'\\ud800'.decode('unicode_escape')},
        {'instruction': 'x' * 10_001},
        {'length': 10_000},
        {'more': 1},
    ],
    ids=str,
)
def test_damaged_rows_are_refused_and_change_nothing(make_engine, observe, facts):
    engine, part = remembering(make_engine)
    act(engine, observe(1)), act(engine, observe(2))
    before = engine.memory.rows('')
    with pytest.raises(CapsuleError):
        part.check_resumable(broken(part.freeze(), **facts))
    assert engine.memory.rows('') == before


def test_rows_of_other_layers_or_without_tensors_are_refused(make_engine, observe):
    engine, part = remembering(make_engine)
    act(engine, observe(1)), act(engine, observe(2))
    frozen = part.freeze()
    for damaged in (
        replace(frozen, tensors={}),
        replace(frozen, tensors={n: t[:, :1] for n, t in frozen.tensors.items()}),
        replace(frozen, tensors={n: t.double() for n, t in frozen.tensors.items()}),
        replace(frozen, facts={}),
        replace(frozen, facts=[1]),
    ):
        with pytest.raises(CapsuleError):
            part.check_resumable(damaged)


@pytest.mark.parametrize('value', [math.nan, math.inf])
def test_rows_that_are_not_finite_are_refused(make_engine, observe, value):
    engine, part = remembering(make_engine)
    act(engine, observe(1)), act(engine, observe(2))
    frozen = part.freeze()
    damaged = frozen.tensors['0/v'].clone()
    damaged[0, -1, -1] = value
    with pytest.raises(CapsuleError, match='each number in row 0.*NaN or infinity'):
        part.check_resumable(replace(frozen, tensors=frozen.tensors | {'0/v': damaged}))


def test_rows_larger_than_those_of_this_engine_are_refused(make_engine, observe):
    engine, part = remembering(make_engine)
    act(engine, observe(1)), act(engine, observe(2))
    _, smaller = remembering(make_engine, memory_keep_ratio=0.25)
    with pytest.raises(CapsuleError, match='set engine.memory_keep_ratio') as refused:
        smaller.check_resumable(part.freeze())
    assert refused.value.code is ErrorCode.MISMATCH


def test_frames_after_the_boundary_do_not_enter_the_restored_memory(make_engine, observe):
    engine, part = remembering(make_engine)
    act(engine, observe(1)), act(engine, observe(2))
    session = session_of(engine, part)
    session.snapshot('here')
    act(engine, observe(7)), act(engine, observe(8))
    session.rollback('here')
    act(engine, observe(3))
    assert [row.handle.sequence for row in engine.memory.rows('')] == [2, 1]


def test_the_limit_removes_the_same_rows_after_a_restore(make_engine, observe):
    kept = []
    for restores in (False, True):
        engine, part = remembering(make_engine, memory_interval=0.1)
        for number in (1, 2, 3, 4):
            act(engine, observe(number, instruction='a'))
        session = session_of(engine, part)
        session.snapshot('here')
        if restores:
            session.rollback('here')
        act(engine, observe(5, instruction='a')), act(engine, observe(6, instruction='a'))
        kept.append([row.handle.sequence for row in engine.memory.rows('')])
    assert kept[0] == kept[1] == [5, 4, 1]


def test_copies_with_unequal_layers_are_restored(make_engine, observe):
    engine, part = remembering(make_engine, compression_layer_budgets='pyramid')
    act(engine, observe(1))
    begin(engine, observe(2))
    session = session_of(engine, part)
    session.snapshot('here')
    expected = go_on(engine)
    session.rollback('here')
    assert list(go_on(engine).values()) == list(expected.values())


def test_an_engine_with_fewer_rows_restores_the_streams_too(make_engine, observe):
    engine, part = remembering(make_engine)
    for number in (1, 2, 3):
        act(engine, observe(number))
    begin(engine, observe(4))
    frozen = capsules_of(engine).engine_part.freeze()
    for rows in (1, 0):
        other, _ = remembering(make_engine, memory_rows=rows, compressed_rows=8)
        target = capsules_of(other).engine_part
        target.check_resumable(frozen)
        target.resume(frozen)
        assert len(other.kv.streams.live()) == len(QUESTIONS)


def test_a_smaller_limit_leaves_out_frames_of_the_interval_first(make_engine, observe):
    engine, part = remembering(make_engine, memory_rows=4, memory_interval=0.1)
    for number, instruction in ((1, 'a'), (2, 'b'), (3, 'b'), (4, 'b'), (5, 'b')):
        act(engine, observe(number, instruction=instruction))
    frozen = part.freeze()
    assert [facts['sequence'] for facts in frozen.facts] == [5, 4, 3, 2, 1]
    other, few = remembering(make_engine, memory_rows=2)
    few.resume(frozen)
    assert [row.handle.sequence for row in other.memory.rows('')] == [5, 4, 1]


def test_without_room_for_all_the_newest_rows_are_restored(make_engine, observe):
    engine, part = remembering(make_engine)
    for number in (1, 2, 3):
        act(engine, observe(number))
    frozen = part.freeze()
    other, few = remembering(make_engine)
    row = engine.memory.rows('')[0].bytes
    other.memory._kv_budget = KvBudget(2.5 * row)
    other.memory._kv_budget.join(other.memory)
    remark = few.resume(frozen)
    assert remark == '2 of 3 memory rows are restored: there is no room for more'
    assert [row.handle.sequence for row in other.memory.rows('')] == [3, 2]


def test_the_frame_after_a_restore_gives_the_newest_row_its_next_words(make_engine, observe):
    engine, part = remembering(make_engine)
    act(engine, observe(1, instruction='wait'))
    session = session_of(engine, part)
    session.snapshot('here')
    session.rollback('here')
    act(engine, observe(2, instruction='put the red cube into the bin'))
    (row,) = engine.memory.rows('')
    assert (row.instruction, row.until) == ('wait', 'put the red cube into the bin')
    act(engine, observe(3, instruction='wait'))
    assert engine.memory.rows('')[-1].until == 'put the red cube into the bin'


def test_a_restored_row_keeps_no_other_part_of_the_capsule_in_memory(make_engine, observe):
    engine, part = remembering(make_engine)
    act(engine, observe(1)), act(engine, observe(2))
    frozen = part.freeze()
    block = torch.cat([t.reshape(-1).view(torch.uint8) for t in frozen.tensors.values()])
    at, views = 0, {}
    for name, tensor in frozen.tensors.items():
        views[name] = block[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        at += tensor.nbytes
    part.resume(FrozenPart(views, frozen.facts))
    for row in engine.memory.rows(''):
        assert row.k.untyped_storage().nbytes() == row.k.nbytes
        assert row.v.untyped_storage().nbytes() == row.v.nbytes
        assert all(
            picture.base is None or picture.base.nbytes == picture.nbytes
            for picture in row.pictures
        )
