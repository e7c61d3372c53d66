"""An engine with packed weights gives the same results as one with plain weights.

This also holds for a model that is too small to be packed by default.
"""

import platform
import time

import numpy as np
import pytest
import torch

from benchmarks.common.declared_writes import DeclaredWrites
from embodied_kv.config import TINY
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.fingerprint import fingerprint
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model import prepacked
from embodied_kv.model.policy import Policy
from embodied_kv.runtime.graph_cache import GraphCache

pytestmark = pytest.mark.skipif(platform.machine() not in prepacked.X86, reason='packs on x86')
CONFIG = EngineConfig(rows=4, streams=2, decode_tokens=32, time_budget=False)


@pytest.fixture
def engines(monkeypatch):
    """Return an engine with plain and one with packed weights, whose writes are checked."""
    plain = Engine(Policy.random(TINY, seed=1), CONFIG)
    monkeypatch.setattr(prepacked, 'LEAST', {torch.float32: 1})
    monkeypatch.setattr(GraphCache, 'watch', DeclaredWrites)
    made = Engine(Policy.random(TINY, seed=1), CONFIG)
    assert not prepacked.prepacked_names(plain.policy.model)
    assert prepacked.prepacked_names(made.policy.model)
    return plain, made


def act_and_say(engine, frame):
    (handle,) = engine.prefill([frame])
    with engine.kv.acquire(handle) as lease:
        (chunk,) = engine.denoise([lease], [time.monotonic() + 1e6])
    stream = engine.open(handle, 'what is there?', max_tokens=8)
    while engine.kv.streams.live():
        engine.decode()
    return chunk.values, stream.tokens


def test_chunks_and_words_are_the_same(engines, observe):
    (values, tokens), (packed_values, packed_tokens) = (
        act_and_say(engine, observe(3)) for engine in engines
    )
    np.testing.assert_allclose(packed_values, values, atol=1e-5)
    assert packed_tokens == tokens


def test_their_capsules_are_not_each_others(engines):
    plain, made = map(fingerprint, engines)
    assert plain != made
