"""Prompts, a shared model, snapshots and byte comparison for tests of the hybrid planner."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from benchmarks.capsule.measure import no_hybrid
from benchmarks.hybrid.config import PLANNER_TINY
from benchmarks.hybrid.planner import HybridPlanner
from benchmarks.hybrid.weights import random_hybrid

BLOCK = PLANNER_TINY.block

if why := no_hybrid():
    pytest.skip(why, allow_module_level=True)


@cache
def model(dtype):
    return random_hybrid(replace(PLANNER_TINY, dtype=dtype), seed=3)


def planner(dtype='float32', **changes):
    """Return a new session of one shared model."""
    return HybridPlanner(replace(PLANNER_TINY, dtype=dtype, **changes), model(dtype))


def prompt(length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(PLANNER_TINY.vocab_size, (length,), generator=generator).tolist()


def cold(tokens, dtype='float32'):
    """Return a new session after a prefill of these tokens."""
    fresh = planner(dtype)
    fresh.prefill(tokens)
    return fresh


def snapshot(session):
    return {name: t.clone() for name, t in session.state().items()}, session.facts()


def assert_same_bytes(a, b):
    """Assert that state and facts of two sessions are equal."""
    assert a.facts() == b.facts()
    ours, theirs = a.state(), b.state()
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def first_difference(a, b):
    """Return the index of the first token that differs, or None."""
    return next((i for i, pair in enumerate(zip(a, b, strict=True)) if pair[0] != pair[1]), None)
