"""A packed weight gives the same bits as the weight as it is stored, and nothing else changes."""

import pytest
import torch
from torch import nn

from embodied_kv.config import preset
from embodied_kv.engine.fingerprint import weights_digest
from embodied_kv.model.dtype import cpu_multiplies_bfloat16
from embodied_kv.model.packed import LEAST, PackedLinear, pack
from embodied_kv.model.pi05 import Pi05
from embodied_kv.model.random import init_random
from embodied_kv.runtime.buffer import Buffer, Buffers
from embodied_kv.runtime.compiled import Compiler

packs = pytest.mark.skipif(
    not cpu_multiplies_bfloat16(), reason='this CPU has no units for bfloat16'
)


def layers(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(320, 640), nn.GELU(), nn.Linear(640, 320, bias=False))
    return model.bfloat16().requires_grad_(False)


@packs
@pytest.mark.parametrize('tokens', [1, 2, 7, 16, 50])
def test_packed_products_are_the_same_bit_for_bit(tokens):
    plain, packed, x = layers(), layers(), torch.randn(2, tokens, 320).bfloat16()
    assert pack(packed) == 2
    with torch.inference_mode():
        assert torch.equal(packed(x), plain(x))


@packs
def test_packing_twice_is_packing_once():
    model = layers()
    assert pack(model) == 2 and pack(model) == 0


@packs
def test_the_digest_of_weights_does_not_see_that_they_are_packed():
    model = Pi05.empty(preset('pi05_small'), 'cpu')
    init_random(model, 0)
    before = weights_digest(model)
    assert pack(model) > 0
    assert any(isinstance(module, PackedLinear) for module in model.modules())
    assert weights_digest(model) == before


def test_float32_and_small_weights_stay_as_they_are():
    small = nn.Linear(LEAST // 64 - 1, 64).bfloat16()
    for model in (nn.Sequential(small), layers().float()):
        kept = [*model.modules()]
        assert pack(model) == 0 and [*model.modules()] == kept


@packs
@pytest.mark.slow
def test_compiled_products_read_the_same_packed_weights(tmp_path):
    model, x, out = layers(), torch.randn(3, 320).bfloat16(), torch.zeros(3, 320).bfloat16()
    pack(model)
    with torch.inference_mode():
        want = model(x)
    compiler = Compiler(folder=tmp_path)

    def multiply():
        out.copy_(model(x))

    compiler.compile('mlp', multiply, Buffers([Buffer('out', out)]))()
    assert compiler.made == 1
    torch.testing.assert_close(out, want, atol=2**-7, rtol=2**-7)
