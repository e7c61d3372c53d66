"""Compiled Euler steps make the chunks of eager ones, whatever rows, lengths and guides."""

import math

import numpy as np
import pytest

from embodied_kv.config import TINY
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.fingerprint import fingerprint
from embodied_kv.engine_config import EngineConfig
from embodied_kv.types import Guide

CHUNK = TINY.chunk_size
SIZE = dict(rows=12, streams=2, time_budget=False, euler_steps=3, min_euler_steps=2)


@pytest.fixture(scope='module')
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('XDG_CACHE_HOME', str(tmp_path_factory.mktemp('cache')))
        yield


@pytest.fixture(scope='module')
def engines(policy, cache, request):
    """Eager and compiled."""
    config = SIZE | getattr(request, 'param', dict(robots=1))
    made = [Engine(policy, EngineConfig(**config, compile=way)) for way in ('off', 'auto')]
    assert [bool(engine.graphs.compiled) for engine in made] == [False, True]
    return made


def chunks(engine, seen, guides=()):
    handles = engine.prefill(seen)
    leases = [engine.kv.acquire(handle) for handle in handles]
    try:
        return engine.denoise(leases, [math.inf] * len(leases), guides=guides)
    finally:
        for lease in leases:
            lease.release()


def assert_alike(engines, seen, guides=()):
    eager, compiled = (chunks(engine, seen, guides) for engine in engines)
    for one, other in zip(eager, compiled, strict=True):
        np.testing.assert_allclose(one.values, other.values, atol=1e-5)
        np.testing.assert_allclose(one.updates, other.updates, atol=1e-5)


def test_frames_of_any_length_without_being_compiled_again(engines, observe):
    assert len(engines[1].graphs.compiled) == 1
    for number in range(12):
        missing = (number % 3,) if number % 2 else ()
        instruction = 'x' * (1 + 3 * number)
        assert_alike(engines, [observe(number, missing, instruction)])


def test_its_capsules_are_not_those_of_an_eager_engine(engines):
    assert len({fingerprint(engine) for engine in engines}) == 2


def test_a_compressed_prefix_is_read_eagerly(engines, observe):
    for engine in engines:
        engine.compression.set_keep_ratio('action', 0.5)
    try:
        assert_alike(engines, [observe(40)])
    finally:
        for engine in engines:
            engine.compression.set_keep_ratio('action', 1.0)


@pytest.mark.slow
@pytest.mark.parametrize('engines', [dict(robots=3, rtc='trained')], indirect=True)
def test_batches_with_guides_of_their_own(engines, observe):
    random = np.random.default_rng(0)
    for count in (1, 2, 3):
        for number in range(4):
            seen = [observe(10 * number + i, robot=f'robot {i}') for i in range(count)]
            plans = random.uniform(-0.05, 0.05, (count, CHUNK, TINY.action_dim))
            guides = [
                Guide(plan.astype(np.float32), i, np.zeros(CHUNK)) for i, plan in enumerate(plans)
            ]
            assert_alike(engines, seen, guides)


@pytest.mark.slow
@pytest.mark.parametrize('engines', [dict(robots=1, rtc='guided')], indirect=True)
def test_guidance(engines, observe):
    plan = np.full((CHUNK, TINY.action_dim), 0.03, np.float32)
    for number in range(4):
        guide = Guide(plan, 1, np.linspace(1, 0, CHUNK, dtype=np.float32))
        assert_alike(engines, [observe(number)], [guide])
