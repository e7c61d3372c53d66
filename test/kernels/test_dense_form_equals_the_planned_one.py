"""The form of attention for tracers equals the planned one, over whole and compressed rows."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_kv.kernels.attention import prefix_attention, segments_attention
from embodied_kv.kernels.dense import dense_form
from embodied_kv.kernels.rows import PADDING, RowBatch, Segment
from embodied_kv.kernels.score import KvSegment, post_vision_statistics

LAYERS, ROWS, KV_HEADS, HEADS, DIM = 2, 5, 2, 4, 8
MAX_TOKENS, AXIS, CAPACITY = 10, 60, 6


def noise(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@st.composite
def batches(draw):
    """Return segments of whole rows, compressed rows and own tokens; slots read one of two."""
    slots, tokens = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    is_causal, seed = draw(st.booleans()), draw(st.integers(0, 99))
    random = np.random.default_rng(seed)
    rows, flats = np.full((2, slots), PADDING)
    for slot in range(draw(st.integers(0, slots))):
        (rows if draw(st.booleans()) else flats)[slot] = draw(st.integers(0, ROWS - 1))
    whole = random.integers(1, MAX_TOKENS + 1, (1, ROWS)).repeat(LAYERS, 0).astype(np.int32)
    pieces = random.integers(1, CAPACITY + 1, (LAYERS, ROWS)).astype(np.int32)
    begins = pieces.cumsum().reshape(pieces.shape).astype(np.int32) - pieces
    own_lengths = random.integers(tokens, MAX_TOKENS + 1, (1, slots)).astype(np.int32)
    live = np.maximum(rows, flats) >= 0
    prefix = RowBatch(slots, whole, tokens).bind(rows)
    flat = RowBatch(slots, pieces, tokens, False, begins, capacity=CAPACITY).bind(flats)
    own = RowBatch(
        slots, own_lengths if is_causal else own_lengths * 0 + tokens, tokens, is_causal
    )
    own.bind(np.where(live, np.arange(slots), PADDING))
    q = noise(seed, slots, tokens, HEADS, DIM)
    parts = (ROWS, MAX_TOKENS), (1, AXIS), (slots, MAX_TOKENS if is_causal else tokens)
    kv = [noise(seed + n, 2, rows, KV_HEADS, size, DIM) for n, (rows, size) in enumerate(parts)]
    segments = [Segment(*x, batch) for x, batch in zip(kv, (prefix, flat, own), strict=True)]
    return q, segments, torch.from_numpy(live)


@settings(deadline=None, max_examples=80)
@given(batches(), st.integers(0, LAYERS - 1))
def test_attention_over_prefix_and_own_tokens(batch, layer):
    q, segments, live = batch
    planned = segments_attention(q, segments, layer)
    with dense_form():
        dense = segments_attention(q, segments, layer)
    torch.testing.assert_close(dense[live], planned[live], atol=1e-5, rtol=0)
    assert not dense[~live].any()


@settings(deadline=None, max_examples=40)
@given(batches(), st.integers(0, LAYERS - 1))
def test_attention_over_the_prefix_alone(batch, layer):
    q, (prefix, flat, _), _ = batch
    planned = prefix_attention(q, (prefix, flat), layer)
    with dense_form():
        dense = prefix_attention(q, (prefix, flat), layer)
    torch.testing.assert_close(dense, planned, atol=1e-5, rtol=0)


@pytest.mark.parametrize('queries', [None, [3, 1]])
@pytest.mark.parametrize('lengths', [[MAX_TOKENS, MAX_TOKENS], [MAX_TOKENS, 4], [0, 2]])
def test_statistics_of_attention(lengths, queries):
    q, k = noise(0, 2, 3, HEADS, DIM), noise(1, 2, KV_HEADS, MAX_TOKENS, DIM)
    own = KvSegment(noise(2, 2, KV_HEADS, 3, DIM), torch.tensor([3, 3]), torch.tensor([0, 0]))
    queries = None if queries is None else torch.tensor(queries, dtype=torch.int32)
    for segments in ([KvSegment(k, torch.tensor(lengths))], [KvSegment(k, own.lengths), own]):
        planned = post_vision_statistics(q, segments, queries=queries)
        with dense_form():
            dense = post_vision_statistics(q, segments, queries=queries)
        for one, other in zip(planned, dense, strict=True):
            torch.testing.assert_close(one, other, atol=1e-6, rtol=0)
