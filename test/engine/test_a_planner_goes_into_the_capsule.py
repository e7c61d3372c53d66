"""A capsule holds the robot's streams and its planner; a restore resumes both or neither."""

from dataclasses import replace

import pytest
import torch
from capsule_sessions import begin, capsules_of, dirty, go_on

from benchmarks.hybrid.config import PLANNER_TINY
from benchmarks.hybrid.part import PlannerPart
from benchmarks.hybrid.planner import HybridPlanner
from benchmarks.hybrid.weights import random_hybrid
from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.disk import Disk
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier
from embodied_kv.engine.fingerprint import fingerprint

PROMPT = [(7 * i + 3) % PLANNER_TINY.vocab_size for i in range(100)]
OTHER = [(5 * i + 1) % PLANNER_TINY.vocab_size for i in range(90)]


@pytest.fixture(scope='module')
def weights():
    return random_hybrid(PLANNER_TINY, seed=3)


def with_planner(capsules, weights):
    """Register a planner that has prefilled the prompt and decoded five tokens, and return it."""
    planner = HybridPlanner(PLANNER_TINY, weights)
    planner.prefill(PROMPT)
    planner.decode(5)
    capsules.register(PlannerPart(planner))
    return planner


def test_planner_and_streams_go_on_together(make_engine, observe, weights):
    engine = make_engine()
    begin(engine, observe(1))
    capsules = capsules_of(engine)
    planner = with_planner(capsules, weights)
    addresses = {name: t.data_ptr() for name, t in planner.buffers.items()}
    capsules.snapshot('both')
    plan, words = planner.decode(12), list(go_on(engine).values())
    planner.prefill(OTHER)
    dirty(engine, observe)
    capsules.rollback('both')
    assert planner.decode(12) == plan
    assert list(go_on(engine).values()) == words
    assert {name: t.data_ptr() for name, t in planner.buffers.items()} == addresses


def test_append_after_the_restore_equals_append(make_engine, weights):
    capsules = capsules_of(make_engine())
    planner = with_planner(capsules, weights)
    capsules.snapshot('here')
    planner.append(OTHER)
    expected = planner.logits.clone()
    planner.prefill(OTHER)
    capsules.rollback('here')
    planner.append(OTHER)
    assert torch.equal(planner.logits, expected)


def test_it_survives_the_disk(make_engine, weights, tmp_path):
    engine = make_engine()
    capsules = capsules_of(engine, Registry(fingerprint(engine), disk=Disk(tmp_path)))
    planner = with_planner(capsules, weights)
    capsules.snapshot('here', tier=Tier.DISK)
    plan = planner.decode(12)
    planner.prefill(OTHER)
    capsules.rollback('here')
    assert planner.decode(12) == plan


@pytest.mark.parametrize('broken', ['of other weights', 'without its fold'])
def test_a_planner_that_does_not_fit_leaves_all_as_it_is(make_engine, observe, weights, broken):
    engine = make_engine()
    begin(engine, observe(1))
    capsules = capsules_of(engine)
    planner = with_planner(capsules, weights)
    capsule, _ = capsules.snapshot('here')
    capsules.registry.drop('here')
    if broken == 'without its fold':
        kept = {n: t for n, t in capsule.tensors.items() if not n.startswith('planner/fold')}
        capsules.registry.add(replace(capsule, tensors=kept))
        problem = 'a partial state'
    else:
        capsules.registry.add(capsule)
        stranger = HybridPlanner(PLANNER_TINY, random_hybrid(PLANNER_TINY, seed=4))
        capsules.register(PlannerPart(stranger))
        problem = 'a planner with other weights'
    live, length = engine.kv.streams.live(), planner.length
    with pytest.raises(CapsuleError, match=problem):
        capsules.rollback('here')
    assert engine.kv.streams.live() == live
    assert planner.length == length
