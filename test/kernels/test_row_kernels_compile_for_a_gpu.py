"""The Triton kernels over rows compile for the known cards, and fit on them.

No card is needed.
"""

import pytest

pytest.importorskip('triton', reason='the Triton kernels need the triton package')

from gpu_builds import COUNT, EXACT, HALF, build

from embodied_kv.kernels import triton_attention, triton_segments, triton_store
from embodied_kv.kernels.tiles import (
    LIMITS,
    Card,
    attention_tile,
    shared_bytes,
    width,
)

TYPES = {
    **dict.fromkeys(('q', 'k', 'v', 'keys', 'values', 'out'), HALF),
    **dict.fromkeys(('ids', 'starts', 'counts', 'lengths', 'offsets'), COUNT),
    **dict.fromkeys([f'{of}_{part}' for of in ('whole', 'flat', 'own') for part in 'kv'], HALF),
    **dict.fromkeys(triton_segments.TABLES, COUNT),
    **dict.fromkeys(('lse', 'parts'), EXACT),
    'scale': 'fp32',
}
# The head size of pi05 is always tested; the smaller ones of other presets are slow to compile.
SLOW = pytest.mark.slow
HEADS = [pytest.param(dim, marks=() if dim == 256 else SLOW) for dim in (48, 64, 80, 256)]
CARDS = [(8, 7), (8, 9), (9, 0)]
# Queries per KV head: of a decode step, of an Euler step, and of an Euler step of SmolVLA.
ONE_TOKEN, CHUNK, CAUSAL_CHUNK = 8, 400, 150


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    monkeypatch.setenv('TRITON_CACHE_DIR', str(tmp_path))

    def call(function, fixed, capability, types=TYPES, **options):
        arch = 10 * capability[0] + capability[1]
        return build(function, fixed, types, arch, tmp_path, **options)

    return call


ROWS, SEGMENTS = triton_attention._row_attention, triton_segments._segments_attention
IN_PARTS = TYPES | {'out': EXACT}  # each split writes its own in float32


@pytest.mark.parametrize(
    'kernel, types, queries, fixed',
    [
        (ROWS, TYPES, CHUNK, dict(CAUSAL=False, RAGGED=False)),
        (ROWS, TYPES, ONE_TOKEN, dict(CAUSAL=True, RAGGED=True)),
        (SEGMENTS, IN_PARTS, CHUNK, dict(CAUSAL=False, FLAT=True)),
        (SEGMENTS, IN_PARTS, CAUSAL_CHUNK, dict(CAUSAL=True, FLAT=True)),
        (SEGMENTS, IN_PARTS, ONE_TOKEN, dict(CAUSAL=True, FLAT=True)),
        (SEGMENTS, TYPES, ONE_TOKEN, dict(CAUSAL=True, FLAT=False)),
    ],
    ids=[
        *('chunk', 'token', 'chunk in segments', 'causal chunk in segments', 'token in segments'),
        'token, nothing compressed',
    ],
)
@pytest.mark.parametrize('dim', HEADS)
@pytest.mark.parametrize('card', CARDS)
def test_attention_fits_on_a_card(compiled, card, dim, kernel, types, queries, fixed):
    tile = attention_tile(queries, dim, 2, Card(card, LIMITS[card], 1))
    sizes = dict(DIM=dim, BLOCK_D=width(dim), BLOCK_M=tile.queries, BLOCK_N=tile.keys)
    stages = dict(num_stages=tile.stages, num_warps=tile.warps)
    made = compiled(kernel, fixed | sizes, card, types, **stages)
    foretold = shared_bytes(dim, 2, tile.queries, tile.keys, tile.stages, card)
    assert made.shared <= foretold <= LIMITS[card]
    # At head size 64 on 8.x cards, ptxas spills two registers to fit a third block on an SM.
    spill = 8 if queries == CAUSAL_CHUNK else 0
    assert made.threads == 32 * tile.warps and made.fits(card, spill), made


@pytest.mark.parametrize('dim', HEADS)
@pytest.mark.parametrize('card', CARDS)
def test_a_merge_of_splits_fits_on_a_card(compiled, card, dim):
    fixed = dict(DIM=dim, BLOCK_D=width(dim), BLOCK_R=triton_segments.MERGED)
    made = compiled(triton_segments._merge_splits, fixed, card)
    assert made.fits(card), made


@pytest.mark.parametrize('dim', HEADS)
@pytest.mark.parametrize('card', CARDS)
def test_store_compiles(compiled, card, dim):
    fixed = dict(DIM=dim, BLOCK_D=width(dim), BLOCK_T=triton_store.BLOCK_TOKENS)
    made = compiled(triton_store._store_rows, fixed, card)
    assert made.fits(card), made
