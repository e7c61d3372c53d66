"""The Triton kernels over rows compile for a GPU; none is needed for that."""

import pytest

triton = pytest.importorskip('triton', reason='the Triton kernels need the triton package')

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from embodied_kv.kernels import triton_attention, triton_store  # noqa: E402

POINTERS = {
    **dict.fromkeys(('q', 'k', 'v', 'keys', 'values', 'out'), '*bf16'),
    **dict.fromkeys(('ids', 'starts', 'counts', 'lengths', 'offsets'), '*i32'),
    'lse': '*fp32',
    'scale': 'fp32',
}
ATTENTION = dict(DIM=48, BLOCK_D=64, BLOCK_M=16, BLOCK_N=64)
STORE = dict(DIM=48, BLOCK_D=64, BLOCK_T=16)


@pytest.mark.parametrize(
    'function, fixed',
    [
        (triton_attention._row_attention, ATTENTION | dict(CAUSAL=False, RAGGED=True)),
        (triton_attention._row_attention, ATTENTION | dict(CAUSAL=True, RAGGED=False)),
        (triton_store._store_rows, STORE),
    ],
)
def test_kernel_compiles(function, fixed, tmp_path, monkeypatch):
    monkeypatch.setenv('TRITON_CACHE_DIR', str(tmp_path))
    names = function.arg_names
    types = {name: 'constexpr' if name in fixed else POINTERS.get(name, 'i32') for name in names}
    constants = {(names.index(name),): value for name, value in fixed.items()}
    source = ASTSource(function, types, constants)
    assert triton.compile(source, target=GPUTarget('cuda', 90, 32)).asm['ptx']
