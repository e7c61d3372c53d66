"""Scorers of the package kvpress in an engine; tools/with runs this file in its own process.

The engine keeps the tokens that the scorer's own code scores highest.
"""

import pytest
import torch

from benchmarks.compress.cache import Harness
from benchmarks.compress.kept import kept_by
from benchmarks.compress.ways import MODES, Way

OF_KEYS = ('KnormPress', 'KeyDiffPress', 'LagKVPress(lag_size=16)', 'RandomPress')
OF_ATTENTION = ('ObservedAttentionPress', 'SnapKVPress(window_size=8)')
LAYERS = 2


def say(engine, handle):
    """Return the tokens of two streams, and the keys of the first one's copy by layer."""
    streams = [engine.open(handle, q, max_tokens=6) for q in ('Subtask:', 'And then?')]
    engine.decode()
    copy = streams[0].lease.row
    keys = [engine.kv.compressed.piece(layer, copy)[0].clone() for layer in range(LAYERS)]
    while any(not stream.reason for stream in streams):
        engine.decode()
    engine.kv.check_integrity()
    return [stream.tokens for stream in streams], keys


@pytest.mark.parametrize(
    'name, by',
    [(name, by) for name in OF_KEYS for by in ('row', 'stream', 'text')]
    + [(name, 'row') for name in OF_ATTENTION],
)
def test_a_budget_is_met_and_a_frame_again_says_the_same(make_engine, observe, name, by):
    options = dict(
        compression_method=f'kvpress:{name}', compression_queries=by, language_keep_ratio=0.3
    )
    said = []
    for _ in range(2):
        engine = make_engine(**options)
        (handle,) = engine.prefill([observe(1)])
        tokens, keys = say(engine, handle)
        assert sum(part.shape[1] for part in keys) == round(0.3 * LAYERS * handle.length)
        assert all(tokens)
        said.append((tokens, keys))
    assert said[0][0] == said[1][0]
    assert all(torch.equal(a, b) for a, b in zip(said[0][1], said[1][1], strict=True))


def test_knorm_keeps_the_keys_of_the_least_norm(make_engine, observe):
    engine = make_engine(compression_method='kvpress:KnormPress', language_keep_ratio=0.3)
    (handle,) = engine.prefill([observe(1)])
    whole = engine.kv.prefixes.row(handle.row)[0].clone()
    _, keys = say(engine, handle)
    for layer, kept in enumerate(keys):
        budget = kept.shape[1]
        recent = int(0.1 * budget + 0.5)
        norms = whole[layer, 0, : handle.length - recent].norm(dim=-1)
        least = norms.sort().values[: budget - recent]
        assert torch.equal(kept[0, : budget - recent].norm(dim=-1).sort().values, least)


@pytest.mark.parametrize('name', OF_ATTENTION)
def test_a_scorer_of_attention_is_refused_by_question(make_engine, name):
    with pytest.raises(ValueError, match='engine.compression_queries must be row for'):
        make_engine(compression_method=f'kvpress:{name}', compression_queries='text')


@pytest.mark.parametrize('name', ['ExpectedAttentionPress', 'TOVAPress'])
def test_a_scorer_that_needs_weights_is_refused_before_the_first_frame(make_engine, name):
    with pytest.raises(ValueError, match=f'kvpress:{name}'):
        make_engine(compression_method=f'kvpress:{name}', compression_queries='row')


@pytest.mark.parametrize('name', [*OF_KEYS, *OF_ATTENTION])
def test_each_goes_through_the_benchmark(policy, observe, name):
    ways = [Way(f'kvpress:{name}', 0.3, by) for by in MODES]
    harness = Harness(policy, ways, 6)
    frame = harness.prefill(observe(1))
    asked = harness.ask(frame, 'Subtask:')
    answers = harness.answers(asked, (None, *ways))
    for way in ways:
        total = sum(part.shape[1] for part in kept_by(way, frame, asked))
        assert answers[way].kept == total / (LAYERS * frame.n) < 0.31
        assert answers[way].tokens
    harness.release(frame)
