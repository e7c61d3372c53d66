"""Attention over a prefix, whole or compressed, and a slot's own tokens equals float64.

All implementations are compared, and the kernel with several numbers of splits. Triton's
interpreter does not support bfloat16.
"""

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_kv.kernels.attention import (
    merge,
    segments_attention,
    torch_row_attention,
)
from embodied_kv.kernels.dense import dense_form
from embodied_kv.kernels.rows import PADDING, RowBatch, Segment

LAYERS, ROWS, FLATS, MOST, TAIL, DIM = 2, 4, 3, 40, 24, 16
EMPTY = 0  # the row, of either arena, that has `least` tokens


def make_case(slots, tokens, kv_heads=1, dense=False, seed=0, least=1):
    """Return queries and segments. slots: row, compressed row and tail row of each slot.

    The queries are the last tokens of a tail. dense: the slots' own tokens in place of tails.
    least: tokens of the rows `EMPTY`.
    """
    random, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)

    def kv(*shape):
        return torch.randn(2, *shape, DIM, generator=generator).unbind(0)

    whole_lengths = random.integers(1, MOST + 1, (1, ROWS), dtype=np.int32)
    flat_lengths = random.integers(1, 20, (LAYERS, FLATS), dtype=np.int32)
    tail_lengths = random.integers(tokens, TAIL + 1, (1, ROWS), dtype=np.int32)
    whole_lengths[0, EMPTY] = flat_lengths[:, EMPTY] = least
    ends = flat_lengths.cumsum().reshape(LAYERS, FLATS) + 3  # a gap before the first
    rows, flats, tails = zip(*slots, strict=True)
    whole = RowBatch(len(slots), whole_lengths, tokens).bind(rows)
    offsets = (ends - flat_lengths).astype(np.int32)
    flat = RowBatch(len(slots), flat_lengths, tokens, offsets=offsets).bind(flats)
    segments = [
        Segment(*kv(ROWS, kv_heads, MOST), whole),
        Segment(*kv(1, kv_heads, int(ends[-1, -1])), flat),
    ]
    if dense:
        k, v = kv(len(slots), tokens, kv_heads)  # the layout of projections
        own = RowBatch.dense(len(slots), tokens, tokens, k.device)
        segments.append(Segment(k.transpose(1, 2), v.transpose(1, 2), own))
    else:
        own = RowBatch(len(slots), tail_lengths, tokens, causal=True).bind(tails)
        segments.append(Segment(*kv(ROWS, kv_heads, TAIL), own))
    return torch.randn(len(slots), tokens, 4, DIM, generator=generator), segments


def reference(q, segments, layer):
    """Return the attention in float64, query by query."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    for slot, token, head in np.ndindex(*q.shape[:3]):
        seen = []
        for k, v, batch in segments:
            row, length = (
                int(batch.ids[slot]),
                int(batch.lengths[min(layer, len(batch.lengths) - 1), slot]),
            )
            begin = 0
            if batch.offsets is not None:
                row, begin = min(row, 0), int(batch.offsets[layer, slot])
            if batch.causal:
                length = min(length, int(batch.starts[slot]) + token + 1)
            if row != PADDING:
                kv_head = head * k.shape[1] // q.shape[2]
                piece = row, kv_head, slice(begin, begin + length)
                seen.append((k[piece].double(), v[piece].double()))
        if seen:
            keys, values = (torch.cat(part) for part in zip(*seen, strict=True))
            scores = keys @ q[slot, token, head].double() * DIM**-0.5
            out[slot, token, head] = scores.softmax(0) @ values
    return out


def alive(slots):
    return [max(row, flat) != PADDING for row, flat, _ in slots]


ROW = st.integers(0, ROWS - 1)
FLAT = st.integers(0, FLATS - 1)
NONE = st.just(PADDING)
SLOT = st.tuples(ROW, NONE, ROW) | st.tuples(NONE, FLAT, ROW)
LIVE_OR_NOT = SLOT | st.just((PADDING,) * 3)
SLOTS = st.tuples(SLOT, st.lists(LIVE_OR_NOT, max_size=4)).map(lambda s: [s[0], *s[1]])


@settings(deadline=None, max_examples=40)
@given(SLOTS, st.integers(1, 4), st.sampled_from([1, 2]), st.booleans(), st.integers(0, 99))
def test_twin_equals_float64_for_any_slots(slots, tokens, kv_heads, dense, seed):
    q, segments = make_case(slots, tokens, kv_heads, dense, seed)
    for layer in range(LAYERS):
        out = segments_attention(q, segments, layer)
        assert out.isfinite().all()
        wanted = reference(q, segments, layer)
        live = alive(slots)
        torch.testing.assert_close(out[live].double(), wanted[live], atol=2e-6, rtol=0)


WHOLE = st.lists(st.tuples(ROW, NONE, ROW) | st.just((PADDING,) * 3), min_size=1, max_size=5)


@settings(deadline=None, max_examples=60)
@given(WHOLE, st.integers(1, 4), st.sampled_from([1, 2]), st.booleans(), st.integers(0, 99))
def test_dense_form_equals_float64_for_slots_of_whole_prefixes(
    slots, tokens, kv_heads, dense, seed
):
    q, segments = make_case(slots, tokens, kv_heads, dense, seed)
    for k, v, batch in segments[::2]:  # tokens beyond the length of a row are not read
        for row, length in zip(batch.ids.tolist(), batch.lengths[0].tolist(), strict=True):
            if row != PADDING:
                k[row, :, length:] = v[row, :, length:] = torch.nan
    for layer in range(LAYERS):
        for read in (segments, segments[::2], segments[2:]):
            with dense_form():
                out = segments_attention(q, read, layer)
            assert out.isfinite().all()
            wanted, live = reference(q, read, layer), alive(slots)
            torch.testing.assert_close(out[live].double(), wanted[live], atol=2e-6, rtol=0)


@pytest.mark.parametrize('form', [nullcontext, dense_form])
def test_a_row_that_holds_the_queries_tokens_is_the_only_segment(form):
    """As for a prefix that is written: a long slot, one that is padded, and a slot of padding."""
    batch = RowBatch(3, np.array([[0, 3, 0, 5]], np.int32), 5).bind([3, 1], [0, 0], [5, 3])
    generator = torch.Generator().manual_seed(0)
    k, v = torch.randn(2, ROWS, 2, MOST, DIM, generator=generator)
    q = torch.randn(3, 5, 4, DIM, generator=generator)
    with form():
        out = segments_attention(q, [Segment(k, v, batch)])
    wanted = reference(q, [Segment(k, v, batch)], 0)
    torch.testing.assert_close(out.double(), wanted, atol=2e-6, rtol=0)


def test_twin_is_a_merge_of_what_each_segment_gives_to_the_bit():
    q, segments = make_case([(1, -1, 2), (-1, 1, 0), (3, -1, 1)], 3)
    whole, flat, own = (torch_row_attention(q, *segment, 1) for segment in segments)
    both = whole[0] + flat[0], whole[1] + flat[1]
    assert torch.equal(segments_attention(q, segments, 1), merge(both, own))
    rows = segments[0].batch.bind([1, 2, 3]), segments[1].batch.bind([-1, -1, -1])
    assert rows[0].live == (0, 1, 2) and not rows[1].live
    whole = torch_row_attention(q, *segments[0], 1)
    assert torch.equal(segments_attention(q, segments, 1), merge(whole, own))


INTERPRETED = """
import sys
sys.path[:0] = {path!r}
import torch
from test_segments_attention_equals_float64 import alive, make_case, reference
from embodied_kv.kernels.triton_segments import segments_attention

def check(slots, tokens, kv_heads, dense, compressed=True, layer=1, splits=(1, 3, None)):
    q, segments = make_case(slots, tokens, kv_heads, dense, least=0)
    segments = segments if compressed else segments[::2]
    wanted = reference(q, segments, layer)
    found = [segments_attention(q, segments, layer, n) for n in splits]
    for out in found:
        torch.testing.assert_close(out.double(), wanted, atol=2e-6, rtol=0)
        torch.testing.assert_close(out, found[0], atol=2e-6, rtol=0)

padding = (-1, -1, -1)
check([(1, -1, 2), padding, (-1, 1, 1), (-1, 2, 3)], 1, 1, False)
check([(0, -1, 1), (-1, 0, 2), (3, -1, 3)], 3, 2, False)  # two prefixes without any token
check([(2, -1, 0), (-1, 1, 0), padding], 5, 1, True, splits=(1, 7))
# Each tile of keys a split of its own: of some a query sees nothing.
check([(2, -1, 2), padding, (1, -1, 3)], 17, 1, False, compressed=False, splits=(1, 9))
print('equal')
"""


def test_triton_kernel_equals_float64_in_the_interpreter(monkeypatch):
    pytest.importorskip('triton', reason='the Triton kernel needs the triton package')
    monkeypatch.setenv('TRITON_INTERPRET', '1')  # read when triton is imported
    code = INTERPRETED.format(path=[str(Path(__file__).parent), str(Path(__file__).parents[2])])
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=120)
    assert run.stdout.strip() == 'equal', run.stderr
