"""Robots that restore the same capsule share the KV of its memory rows."""

import math
from contextlib import closing

import numpy as np
import pytest
from capsule_sessions import capsules_of

from embodied_kv.capsule.disk import Disk
from embodied_kv.capsule.reentry import SceneSummary
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier
from embodied_kv.engine.fingerprint import fingerprint
from embodied_kv.session.engine_part import EnginePart
from embodied_kv.session.frame_memory_part import FrameMemoryPart

SCENE = SceneSummary(np.zeros(7), {'front': np.zeros((16, 16, 3), np.uint8)}, 10_000_000_000)


@pytest.fixture
def engine(make_engine):
    return make_engine(memory_rows=3, memory_keep_ratio=0.5)


def seen_by(engine, observe, robot, numbers):
    for number in numbers:
        engine.prefill([observe(number, robot=robot)])


def act(engine, observation):
    (handle,) = engine.prefill([observation])
    with engine.kv.acquire(handle) as lease:
        config = engine.policy.config
        noises = np.ones((1, config.chunk_size, config.padded_action_dim), np.float32)
        (chunk,) = engine.denoise([lease], [math.inf], noises=noises)
    return chunk.values


@pytest.fixture
def shared(engine, observe, tmp_path):
    """Return an engine whose robots a, b and c have restored a file of what a has seen."""
    seen_by(engine, observe, 'a', (1, 2, 3))
    with closing(Registry(fingerprint(engine), disk=Disk(tmp_path))) as registry:
        for number, robot in enumerate('abc'):
            session = capsules_of(engine, registry, EnginePart(engine, robot))
            session.register(FrameMemoryPart(engine, robot))
            if not number:
                session.snapshot('place', SCENE, Tier.DISK)
            session.restore('place', SCENE)
    return engine


def test_the_same_frames_are_kept_once(shared):
    own, *others = ([r for r in shared.memory.rows(robot)] for robot in 'abc')
    for rows in others:
        for row, theirs in zip(own, rows, strict=True):
            assert row.k.data_ptr() == theirs.k.data_ptr()
            assert row.v.data_ptr() == theirs.v.data_ptr()
    assert shared.memory.bytes_used == sum(row.bytes for row in own)


def test_a_robot_acts_on_frames_that_another_one_has_seen(shared, observe):
    chunks = [act(shared, observe(9, robot=robot)) for robot in ('a', 'b', 'stranger')]
    assert np.array_equal(chunks[0], chunks[1])
    assert not np.allclose(chunks[0], chunks[2], atol=1e-4)


def test_eviction_takes_a_shared_row_from_all_robots_and_frees_it_once(shared):
    offers, used = shared.memory.evictable(), shared.memory.bytes_used
    assert len(offers) == 3 and sum(offer.bytes for offer in offers) == used
    assert offers[0].evict() == offers[0].bytes == used - shared.memory.bytes_used
    assert [len(shared.memory.rows(robot)) for robot in 'abc'] == [2, 2, 2]
    assert offers[0].evict() == 0
    shared.kv.check_integrity()


def test_a_robot_that_forgets_leaves_the_rows_of_the_others(shared):
    used = shared.memory.bytes_used
    assert shared.memory.forget('a') == 3
    assert shared.memory.bytes_used == used
    assert shared.memory.rows('a') == () and len(shared.memory.rows('b')) == 3


def test_rows_that_differ_in_one_value_are_kept_apart(engine, observe):
    seen_by(engine, observe, 'a', (1, 2))
    part = FrameMemoryPart(engine, 'a')
    frozen = part.freeze()
    frozen.tensors['0/k'] = frozen.tensors['0/k'].clone()
    frozen.tensors['0/k'][0, 0, 0] += 1
    FrameMemoryPart(engine, 'a').resume(part.freeze())
    FrameMemoryPart(engine, 'b').resume(frozen)
    (own, older), (other, shared) = (engine.memory.rows(robot) for robot in 'ab')
    assert own.k.data_ptr() != other.k.data_ptr() and older.k.data_ptr() == shared.k.data_ptr()
    assert own.address != other.address and older.address == shared.address
