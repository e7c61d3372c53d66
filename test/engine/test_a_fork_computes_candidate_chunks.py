"""`fork_chunk` returns a chunk per branch from the frozen row, and leaves the session as it is."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from capsule_sessions import begin, capsules_of, dirty, go_on

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.disk import Disk
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier
from embodied_kv.engine.fingerprint import fingerprint
from embodied_kv.errors import ErrorCode
from embodied_kv.session.engine_part import Branch, EnginePart
from embodied_kv.types import Guide


def acted(engine, frame, guide=None):
    """Prefill a frame, and return its chunk."""
    (handle,) = engine.prefill([frame])
    with engine.kv.acquire(handle) as lease:
        (chunk,) = engine.denoise([lease], [math.inf], guides=[guide])
    return chunk


def held(engine):
    """Return what a fork must leave as it is: rows, leases, streams, and the newest frame."""
    streams = [(s.id, s.reason, tuple(s.tokens)) for s in engine.kv.streams.live()]
    pools = [(pool.bytes_used, pool.bytes_reserved) for pool in engine.kv.pools]
    engine.kv.check_integrity()
    return streams, pools, engine.kv.stats(), engine.kv.frames.current()


def refused(engine, capsules, name, code, match, seeds=(1,)):
    before = held(engine)
    with pytest.raises(CapsuleError, match=match) as error:
        capsules.fork_chunk(name, [*map(Branch, seeds)])
    assert error.value.code == code and held(engine) == before


@pytest.mark.parametrize('config', [{}, dict(action_keep_ratio=0.3)])
def test_a_branch_without_a_change_is_the_chunk_of_the_frame(make_engine, observe, config):
    engine = make_engine(max_batch_robots=1, **config)
    chunk = acted(engine, observe(4))
    capsules = capsules_of(engine)
    capsules.snapshot('here')
    dirty(engine, observe)
    (same, other, again), seconds = capsules.fork_chunk('here', [Branch(), Branch(5), Branch(5)])
    np.testing.assert_array_equal(same.values, chunk.values)
    np.testing.assert_array_equal(other.values, again.values)
    assert not np.array_equal(same.values, other.values) and seconds > 0
    assert (same.stamp, same.sequence) == (chunk.stamp, chunk.sequence)
    np.testing.assert_array_equal(capsules.replay('here').values, chunk.values)


def test_branches_continue_the_guide_of_the_chunk(make_engine, observe):
    engine = make_engine(rtc='guided')
    guide = Guide(np.full((6, 7), 0.01, np.float32), 2, np.linspace(1, 0, 6))
    chunk = acted(engine, observe(4), guide)
    capsules = capsules_of(engine)
    capsules.snapshot('here')
    ((same,), _) = capsules.fork_chunk('here', [Branch()])
    np.testing.assert_array_equal(same.values, chunk.values)


def test_the_session_stays_as_it_is(make_engine, observe):
    engine = make_engine(max_batch_robots=2)
    begin(engine, observe(1), temperature=1.0, seed=3)
    capsules = capsules_of(engine)
    capsules.snapshot('here')
    before = held(engine)
    chunks, _ = capsules.fork_chunk('here', [Branch(seed) for seed in range(5)])
    assert len({chunk.values.tobytes() for chunk in chunks}) == 5
    assert held(engine) == before
    said = [words for words in go_on(engine).values()]
    capsules.rollback('here')
    assert [*go_on(engine).values()] == said


def test_a_capsule_on_disk_gives_the_same_candidates(make_engine, observe, tmp_path):
    engine = make_engine()
    acted(engine, observe(4))
    capsules = capsules_of(engine, Registry(fingerprint(engine), disk=Disk(tmp_path)))
    capsules.snapshot('here')
    branches = [Branch(seed) for seed in range(3)]
    here, _ = capsules.fork_chunk('here', branches)
    capsules.registry.move('here', Tier.DISK)
    there, _ = capsules.fork_chunk('here', branches)
    np.testing.assert_array_equal([c.values for c in here], [c.values for c in there])


def test_without_the_row_of_the_frame_a_fork_is_refused(make_engine, observe):
    engine = make_engine()
    begin(engine, observe(1))
    capsules = capsules_of(engine, part=EnginePart(engine, freezes_frame=False))
    capsules.snapshot('here')
    refused(engine, capsules, 'here', ErrorCode.NOT_FOUND, 'set store_frame of the node session')
    capsules.engine_part.freezes_frame = True
    capsules.snapshot('with')
    assert len(capsules.fork_chunk('with', [Branch(1)])[0]) == 1


def test_without_a_free_row_nothing_is_evicted(make_engine, observe):
    engine = make_engine(rows=4, max_batch_robots=1, reserved_rows=2)
    capsules = capsules_of(engine)
    acted(engine, observe(1))
    capsules.snapshot('here')
    for number in (2, 3):
        begin(engine, observe(number), 1, ('Subtask:',))
    with engine.kv.acquire(engine.prefill([observe(4)])[0]):
        engine.prefill([observe(5)])
        assert engine.kv.stats().rows_free == 0 and len(engine.kv.streams.live()) == 2
        refused(engine, capsules, 'here', ErrorCode.NO_ROOM, 'prefix rows are leased')
    assert len(capsules.fork_chunk('here', [Branch(1)])[0]) == 1


def test_a_full_budget_evicts_nothing(make_engine, observe):
    engine = make_engine(max_batch_robots=1, reserved_rows=2)
    begin(engine, observe(1))
    engine.prefill([observe(2)])
    capsules = capsules_of(engine)
    capsules.snapshot('here')
    with engine.kv.acquire(engine.prefill([observe(3)])[0]):
        engine.prefill([observe(4)])
        pools = engine.kv.budget.stats()
        engine.kv.budget.capacity = sum(max(pool.floor, pool.bytes_reserved) for pool in pools)
        refused(engine, capsules, 'here', ErrorCode.NO_ROOM, 'no room for')
    assert engine.kv.streams.evictions == 0
    engine.kv.budget.capacity = math.inf
    assert len(capsules.fork_chunk('here', [Branch(1)])[0]) == 1


def test_a_damaged_capsule_is_refused(make_engine, observe):
    engine = make_engine()
    acted(engine, observe(4))
    capsules = capsules_of(engine)
    capsule, _ = capsules.snapshot('here')
    half = {name: t for name, t in capsule.tensors.items() if not name.endswith('row/0/v')}
    facts = {**capsule.facts, 'session': {**capsule.facts['session'], 'current': 7}}
    capsules.registry.add(replace(capsule, name='half', tensors=half))
    capsules.registry.add(replace(capsule, name='odd', facts=facts))
    refused(engine, capsules, 'half', ErrorCode.MISMATCH, 'row/0/v must be')
    refused(engine, capsules, 'odd', ErrorCode.DAMAGED, 'current must be')
    refused(engine, capsules, 'absent', ErrorCode.NOT_FOUND, "no capsule 'absent'")
    refused(engine, capsules, 'here', ErrorCode.INVALID_ARGUMENT, 'at least one branch', ())


def test_actions_that_are_not_finite_refuse_the_whole_fork(make_engine, observe):
    engine = make_engine()
    acted(engine, observe(4))
    capsules = capsules_of(engine)
    capsule, _ = capsules.snapshot('here')
    broken = {name: torch.full_like(t, math.nan) for name, t in capsule.tensors.items()}
    capsules.registry.add(replace(capsule, name='broken', tensors=broken))
    refused(engine, capsules, 'broken', ErrorCode.INVALID_ARGUMENT, 'must be finite')


@pytest.mark.parametrize('seed', [-1, 2**64])
def test_a_seed_out_of_range_is_refused(seed):
    with pytest.raises(CapsuleError, match='seed must be from 0'):
        Branch(seed)


def test_each_batch_is_one_job_of_the_engine_thread(make_engine, observe):
    engine = make_engine(max_batch_robots=2)
    acted(engine, observe(4))
    capsules, steps = capsules_of(engine), []
    capsules.snapshot('here')
    call = capsules._call
    capsules._call = lambda work: (steps.append(engine.committed), call(work))[1]
    began = engine.committed
    capsules.fork_chunk('here', [Branch(seed) for seed in range(5)])
    assert steps == [began, began, began + 1, began + 2]  # the copy of the row, then the batches
