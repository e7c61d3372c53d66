"""An engine that defers traces starts without them; a trace between two steps changes nothing."""

import math

import numpy as np
import pytest
import torch

from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig

SIZE = dict(
    max_batch_robots=1, rows=12, streams=2, time_budget=False, euler_steps=2, min_euler_steps=2
)


@pytest.fixture
def engine(policy, tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    return Engine(policy, EngineConfig(**SIZE, compile='auto'), defers_traces=True)


def trace_one_of_each_kind(engine):
    """Trace the first pending computation of each kind, as the engine thread does."""
    graphs, compiler, kinds = engine.graphs, engine.graphs._compiler, {}
    for wanted in compiler.pending:
        kinds.setdefault(wanted.name.split()[0], wanted)
    compiler.pending[:] = kinds.values()
    while compiler.pending:
        graphs._trace_next()
    return set(kinds)


def test_nothing_is_traced_at_the_start(engine):
    compiler = engine.graphs._compiler
    assert compiler.traced == 0 and not engine.graphs.compiled_names
    assert [wanted.name for wanted in compiler.pending] == list(compiler.names)


def test_rows_streams_and_chunks_are_the_same_after_traces(engine, observe):
    handle = engine.prefill([observe(1)])[0]
    stream = engine.open(handle, 'what?', max_tokens=8)
    engine.decode()
    with engine.kv.acquire(handle) as lease:
        before = engine.denoise([lease], [math.inf])[0]
        stored = [b.tensor.clone() for b in engine.kv.prefixes.buffers('prefixes')]
        said = list(stream.tokens)
        kinds = trace_one_of_each_kind(engine)
        assert kinds == {'encode_images', 'prefill', 'denoise', 'extend'}
        for was, buffer in zip(stored, engine.kv.prefixes.buffers('prefixes'), strict=True):
            torch.testing.assert_close(buffer.tensor, was, rtol=0, atol=0, equal_nan=True)
        again = engine.denoise([lease], [math.inf])[0]
    np.testing.assert_array_equal(before.values, again.values)
    assert stream.tokens == said
    while not stream.reason:
        engine.decode()
    other = engine.open(engine.prefill([observe(1)])[0], 'what?', max_tokens=8)
    while not other.reason:
        engine.decode()
    assert other.tokens == stream.tokens
    assert len(engine.graphs._compiler.missing) == len(kinds)
