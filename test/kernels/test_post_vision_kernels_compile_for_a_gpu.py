"""The Triton kernels compile for a GPU, which needs none: the interpreter checks no types."""

import pytest

triton = pytest.importorskip('triton', reason='the Triton kernels need the triton package')

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from embodied_kv.kernels import triton_score  # noqa: E402

TYPES = {
    **dict.fromkeys(('q', 'k'), '*bf16'),
    **dict.fromkeys(('lengths', 'starts', 'queries', 'partial', 'counts'), '*i32'),
    **dict.fromkeys(('top', 'total', 'top_out', 'total_out', 'columns'), '*fp32'),
    **dict.fromkeys(('scale', 'p'), 'fp32'),
}
SHAPE = dict(PADDED=True, DIM=48, BLOCK_D=64, BLOCK_M=16, BLOCK_N=32, BLOCK=64)


@pytest.mark.parametrize(
    'kernel, causal',
    [('_row_statistics', True), ('_column_statistics', True), ('_reduce_counts', False)],
)
def test_kernel_compiles(kernel, causal, tmp_path, monkeypatch):
    monkeypatch.setenv('TRITON_CACHE_DIR', str(tmp_path))
    monkeypatch.setenv('TRITON_DEFAULT_FP_FUSION', '1')  # stated: unset, it warns
    function = getattr(triton_score, kernel)
    fixed = SHAPE | dict(CAUSAL=causal)
    names = function.arg_names
    source = ASTSource(
        function,
        {name: 'constexpr' if name in fixed else TYPES.get(name, 'i32') for name in names},
        {(names.index(name),): value for name, value in fixed.items() if name in names},
    )
    assert triton.compile(source, target=GPUTarget('cuda', 90, 32)).asm['ptx']
