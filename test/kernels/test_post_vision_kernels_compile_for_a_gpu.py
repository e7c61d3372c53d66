"""The Triton kernels of post-vision statistics compile for the known cards, and fit on them.

No card is needed. The types are checked here, because the interpreter checks none.
"""

import pytest

pytest.importorskip('triton', reason='the Triton kernels need the triton package')

from gpu_builds import COUNT, EXACT, HALF, build
from test_row_kernels_compile_for_a_gpu import CARDS, HEADS

from embodied_kv.kernels import triton_score
from embodied_kv.kernels.tiles import width

TYPES = {
    **dict.fromkeys(('q', 'k'), HALF),
    **dict.fromkeys(('lengths', 'starts', 'queries', 'partial', 'counts'), COUNT),
    **dict.fromkeys(('top', 'total', 'top_out', 'total_out', 'columns'), EXACT),
    **dict.fromkeys(('scale', 'p'), 'fp32'),
}


@pytest.mark.parametrize(
    'name, causal',
    [('_row_statistics', True), ('_column_statistics', True), ('_reduce_counts', False)],
)
@pytest.mark.parametrize('dim', HEADS)
@pytest.mark.parametrize('card', CARDS)
def test_a_kernel_fits_on_a_card(name, causal, dim, card, tmp_path, monkeypatch):
    monkeypatch.setenv('TRITON_CACHE_DIR', str(tmp_path))
    monkeypatch.setenv('TRITON_DEFAULT_FP_FUSION', '1')  # if unset, Triton warns
    kernel = getattr(triton_score, name)
    fixed = dict(CAUSAL=causal, PADDED=True, DIM=dim, BLOCK_D=width(dim))
    fixed |= dict(BLOCK_M=64, BLOCK_N=64, BLOCK=64)
    fixed = {key: value for key, value in fixed.items() if key in kernel.arg_names}
    made = build(kernel, fixed, TYPES, 10 * card[0] + card[1], tmp_path)
    assert made.fits(card), made
