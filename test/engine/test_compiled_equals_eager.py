"""A compiled engine gives an eager one's results for all rows, lengths, streams and guides."""

import math

import numpy as np
import pytest
import torch
from capsule_sessions import begin, capsules_of, go_on
from torch._dynamo.utils import counters

from benchmarks.common.launched import launches
from embodied_kv.capsule.reentry import SceneSummary
from embodied_kv.capsule.registry import Registry
from embodied_kv.config import TINY
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.fingerprint import fingerprint
from embodied_kv.engine_config import EngineConfig
from embodied_kv.runtime import compiled as compiled_runtime
from embodied_kv.runtime.compiled import Compiler
from embodied_kv.types import Guide

pytestmark = pytest.mark.timeout(600)  # s; compilation is slow
CHUNK = TINY.chunk_size
SIZE = dict(
    max_batch_robots=1, rows=12, streams=2, time_budget=False, euler_steps=3, min_euler_steps=2
)
SIZE |= dict(decode_steps=2)
QUICK = 'denoise 1x0', 'extend 2x1'  # compiled by tests that do not compile all
ALL = ''
COMPRESSED = dict(language_keep_ratio=0.5, compressed_rows=6)


@pytest.fixture(scope='module')
def engines(policy, tmp_path_factory, request):
    """Return an eager and a compiled engine."""
    config, names = getattr(request, 'param', ({}, QUICK))
    compile = Compiler.compile

    def chosen(self, name, *others):
        return compile(self, name, *others) if name.startswith(names) else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('XDG_CACHE_HOME', str(tmp_path_factory.mktemp('cache')))
        patch.setattr(Compiler, 'compile', chosen)
        config = SIZE | config
        made = [Engine(policy, EngineConfig(**config, compile=way)) for way in ('off', 'now')]
    assert not made[0].graphs.compiled_names
    assert {n for n in made[1].graphs.compiled_names if n in QUICK} == set(QUICK)
    return made


def chunks(engine, seen, guides=()):
    handles = engine.prefill(seen)
    leases = [engine.kv.acquire(handle) for handle in handles]
    try:
        return engine.denoise(leases, [math.inf] * len(leases), guides=guides)
    finally:
        for lease in leases:
            lease.release()


def assert_chunks_alike(engines, seen, guides=()):
    eager, compiled = (chunks(engine, seen, guides) for engine in engines)
    for one, other in zip(eager, compiled, strict=True):
        np.testing.assert_allclose(one.values, other.values, atol=1e-5)
        np.testing.assert_allclose(one.updates, other.updates, atol=1e-5)


def said(engine, seen, queries):
    """Return tokens and decode KV of greedy streams over these frames, decoded in one batch."""
    handles = engine.prefill(seen)
    streams = [
        engine.open(handle, query, max_tokens=6)
        for handle, query in zip(handles, queries, strict=True)
    ]
    tails = {}
    while any(not stream.reason for stream in streams):
        engine.decode()
        for stream in engine.kv.streams.live():
            length = int(engine.kv.decode_kv.lengths[0, stream.decode_row])
            tails[stream.id] = engine.kv.decode_kv.k[:, stream.decode_row, :, :length].clone()
    engine.deltas()
    return [stream.tokens for stream in streams], list(tails.values())


def assert_words_alike(engines, seen, queries):
    (eager, tails), (compiled, others) = (said(engine, seen, queries) for engine in engines)
    assert eager == compiled
    for one, other in zip(tails, others, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=0)


def frames(observe, count, first=0, **others):
    return [observe(first + i, robot=f'robot {i}', **others) for i in range(count)]


def test_chunks_of_frames_of_any_length(engines, observe):
    for number in range(12):
        missing = (number % 3,) if number % 2 else ()
        assert_chunks_alike(engines, [observe(number, missing, 'x' * (1 + 3 * number))])


def test_a_frame_that_language_reads_acts_bit_for_bit_as_one_alone(engines, observe):
    for number in range(3):
        (alone,) = chunks(engines[1], [observe(60 + number)])
        (handle,) = engines[1].prefill([observe(60 + number)])
        streams = [engines[1].open(handle, 'ab' * (i + 1), max_tokens=9) for i in range(2)]
        for _ in range(4):  # both begin, then continue in one batch
            engines[1].decode()
        with engines[1].kv.acquire(handle) as lease:
            (shared,) = engines[1].denoise([lease], [math.inf])
        assert np.array_equal(alone.values, shared.values)
        for stream in streams:
            engines[1].cancel(stream.id)
        engines[1].deltas()


def test_words_of_one_stream(engines, observe):
    for number in range(3):
        assert_words_alike(engines, [observe(number)], ['Subtask:'])


def said_of_one(engine, frame, queries, **how):
    """Return the tokens of streams over one frame, decoded in one batch."""
    (handle,) = engine.prefill([frame])
    streams = [engine.open(handle, query, max_tokens=5, **how) for query in queries]
    while any(not stream.reason for stream in streams):
        engine.decode()
    engine.deltas()
    return [stream.tokens for stream in streams]


def test_words_of_two_streams_of_one_frame(engines, observe):
    eager, compiled = (said_of_one(engine, observe(9), ['ab', 'abab']) for engine in engines)
    assert eager == compiled


def test_nothing_is_compiled_or_traced_in_the_loop(engines, observe, monkeypatch):
    """Lengths, states, missing views, numbers of streams and temperatures vary in the loop."""

    def never(*_):
        raise AssertionError('compiled in the loop')

    monkeypatch.setattr(Compiler, 'compile', never)
    monkeypatch.setattr(compiled_runtime, 'trace', never)
    captures, traced = engines[1].graphs.captures, dict(counters['frames'])
    rng, lengths = np.random.default_rng(0), set()
    for number in range(25):
        missing = (int(rng.integers(3)),) if number % 3 == 0 else ()
        frame = observe(100 + number, missing, 'x' * int(rng.integers(1, 35)))
        assert_chunks_alike(engines, [frame])
        queries = ['q' * int(rng.integers(1, 16)) for _ in range(rng.integers(1, 3))]
        how = dict(temperature=1.0, seed=number) if number % 4 == 0 else {}
        eager, compiled = (said_of_one(engine, frame, queries, **how) for engine in engines)
        assert eager == compiled
        lengths.add((len(queries), *map(len, queries)))
    assert len(lengths) > 15
    assert engines[1].graphs.captures == captures
    assert dict(counters['frames']) == traced


def test_a_layer_launches_few_kernels(engines):
    packages = engines[1].graphs.packages
    assert set(packages) >= set(QUICK)
    layers = TINY.backbone.layers
    for name, path in packages.items():
        most = 16 * layers + 5 if name.startswith('denoise') else 18 * layers + 5
        assert 3 * layers < launches(path) <= most, name


def test_a_session_that_one_engine_froze_continues_on_the_other(engines, observe):
    assert len({fingerprint(engine) for engine in engines}) == 1
    for one, other in (engines, engines[::-1]):
        registry = Registry(fingerprint(one))
        begin(one, observe(7), steps=2, questions=('Subtask:', 'What is that?'))
        scene = SceneSummary(np.zeros(7), {'front': np.zeros((16, 16, 3), np.uint8)}, 0)
        capsules_of(one, registry).snapshot('frozen', scene)
        expected = list(go_on(one).values())
        resumed = capsules_of(other, registry).restore('frozen', scene)
        assert len(resumed.streams) == 2 and list(go_on(other).values()) == expected
        (frame,) = chunks(one, [observe(8)])
        (same,) = chunks(other, [observe(8)])
        np.testing.assert_allclose(frame.values, same.values, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    'engines',
    [
        (dict(COMPRESSED, compression_queries='text'), (*QUICK, 'scored_')),
        (dict(COMPRESSED, compression_queries='row', action_keep_ratio=0.4), (*QUICK, 'scored_')),
    ],
    indirect=True,
    ids=['text', 'row'],
)
def test_compiled_code_reads_compressed_prefixes(engines, observe):
    names = engines[1].graphs.compiled_names
    assert any(name.startswith('scored_prefill') for name in names)
    for number in range(4):
        assert_chunks_alike(engines, [observe(number)])
        assert_words_alike(engines, [observe(20 + number)], ['ab'])
        eager, compiled = (said_of_one(e, observe(9 + number), ['ab', 'abab']) for e in engines)
        assert eager == compiled
    graphs = [engines[1].graphs[shape] for shape in engines[1].graphs.shapes]
    used = {graph.name: graph for graph in graphs if graph.is_compiled and graph.replays}
    assert {*QUICK} <= {*used}
    assert all(graph.compiled_replays == graph.replays for graph in used.values())
    assert engines[1].kv.copies.allocation_failures == 0


def test_a_prefix_that_is_compressed_after_the_start_is_read_eagerly(engines, observe):
    for engine in engines:
        engine.compression.set_keep_ratio('action', 0.5)
    try:
        assert_chunks_alike(engines, [observe(40)])
    finally:
        for engine in engines:
            engine.compression.set_keep_ratio('action', 1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    'engines', [(dict(max_batch_robots=3, rtc='trained'), ALL)], indirect=True
)
def test_batches_with_guides_and_streams_of_their_own(engines, observe):
    random = np.random.default_rng(0)
    for number in range(4):
        for count in (1, 2, 3):
            seen = frames(observe, count, 10 * number)
            plans = random.uniform(-0.05, 0.05, (count, CHUNK, TINY.action_dim))
            guides = [
                Guide(plan.astype(np.float32), i, np.zeros(CHUNK)) for i, plan in enumerate(plans)
            ]
            assert_chunks_alike(engines, seen, guides)
        assert_words_alike(
            engines, frames(observe, 2, 5 * number), ['ab', 'abcdef' * (number + 1)]
        )


@pytest.mark.slow
@pytest.mark.parametrize('engines', [(dict(rtc='guided'), QUICK)], indirect=True)
def test_guidance(engines, observe):
    plan = np.full((CHUNK, TINY.action_dim), 0.03, np.float32)
    for number in range(4):
        guide = Guide(plan, 1, np.linspace(1, 0, CHUNK, dtype=np.float32))
        assert_chunks_alike(engines, [observe(number)], [guide])


REMEMBERING = dict(memory_rows=2, memory_keep_ratio=1.0, memory_interval=0.1)


@pytest.mark.slow
@pytest.mark.parametrize('engines', [(REMEMBERING, (*QUICK, 'recall 1x16'))], indirect=True)
def test_memory_rows_and_recall_tokens_are_read_alike(engines, observe):
    assert 'recall 1x16' in engines[1].graphs.compiled_names
    for number in range(1, 5):
        eager, compiled = (chunks(engine, [observe(number)])[0].values for engine in engines)
        np.testing.assert_allclose(compiled, eager, atol=1e-4)
        assert len(engines[1].memory.rows('')) == min(number - 1, 2)
