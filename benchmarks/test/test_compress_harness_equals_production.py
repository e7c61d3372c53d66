"""The harness keeps the same tokens and gets the same answers as the serving engine."""

import pytest
import torch
from compress_bench_cases import KEEP_RATIOS, QUESTIONS, observe, policy

from benchmarks.compress.cache import Harness
from benchmarks.compress.kept import kept_by
from benchmarks.compress.ways import METHODS, OURS, POOLED, ROW, STREAM, TEXT, WIDE, Way
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig

TOKENS = 8
# `random` is left out: the engine draws its positions once, the harness for each frame.
SERVED = tuple(name for name in METHODS if name not in ('random', WIDE))


@pytest.fixture(scope='module')
def tiny():
    return policy()


def serve(tiny, frame, question, **config):
    """Return the keys of the engine's compressed row by layer, and the answer of its stream."""
    engine = Engine(tiny, EngineConfig(rows=4, time_budget=False, **config))
    (handle,) = engine.prefill([frame])
    stream = engine.open(handle, question, max_tokens=TOKENS)
    text = ''.join(delta.text for delta in engine.decode())
    row = stream.lease.row
    keys = [engine.kv.compressed.piece(layer, row)[0].clone() for layer in range(4)]
    while engine.kv.streams.live():
        text += ''.join(delta.text for delta in engine.decode())
    return keys, text


@pytest.mark.parametrize('keep_ratio', KEEP_RATIOS)
@pytest.mark.parametrize(
    'by, method',
    [(STREAM, m) for m in (OURS, WIDE, POOLED, 'streaming_llm')]
    + [(ROW, name) for name in SERVED],
)
def test_the_same_tokens_are_kept_and_said(tiny, by, method, keep_ratio):
    way = Way(method, keep_ratio, by)
    harness = Harness(tiny, [way], TOKENS)
    for number, question in enumerate(QUESTIONS[:2] if by == STREAM else QUESTIONS[2:], start=1):
        seen = harness.prefill(observe(number))
        asked = harness.ask(seen, question)
        kept = kept_by(way, seen, asked)
        config = dict(compression_method=method.removesuffix(TEXT), compression_after_tokens=0)
        config |= dict(compression_queries=by, language_keep_ratio=keep_ratio)
        if method.endswith(TEXT) and by == STREAM:
            config |= dict(compression_queries='text')
        keys, text = serve(tiny, observe(number), question, **config)
        for own, positions, whole in zip(keys, kept, seen.scorer.prefix.keys, strict=True):
            torch.testing.assert_close(own, whole[:, positions[0]], atol=1e-5, rtol=0)
        assert harness.answers(asked, [way])[way].text == text
        harness.release(seen)


def test_the_whole_is_what_serving_says_uncompressed(tiny):
    ways = [Way(OURS, 1.0, STREAM), Way('full', 0.1, ROW), Way('hired', 1.0, ROW)]
    harness = Harness(tiny, ways, TOKENS)
    seen = harness.prefill(observe(1))
    for question in QUESTIONS:
        engine = Engine(tiny, EngineConfig(rows=4, time_budget=False))
        (handle,) = engine.prefill([observe(1)])
        engine.open(handle, question, max_tokens=TOKENS)
        text = ''
        while engine.kv.streams.live():
            text += ''.join(delta.text for delta in engine.decode())
        said = harness.answers(harness.ask(seen, question), [None, *ways])
        assert {answer.text for answer in said.values()} == {text}
        assert {answer.kept for answer in said.values()} == {1.0}
    assert harness.engine.kv.stats().compressed == 0
