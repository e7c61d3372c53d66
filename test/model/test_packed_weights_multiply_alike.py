"""Prepacked weights give the results of stored ones, in bfloat16 bit for bit."""

import platform
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import nn

from benchmarks.common.launched import run_code
from embodied_kv.config import preset
from embodied_kv.engine.fingerprint import weights_digest
from embodied_kv.model.backbone import Backbone
from embodied_kv.model.dtype import cpu_multiplies_bfloat16
from embodied_kv.model.pi05 import Pi05
from embodied_kv.model.prepacked import LEAST, X86, PrepackedLinear, least, lower, pack
from embodied_kv.model.random import init_random
from embodied_kv.runtime.buffer import Buffer, Buffers
from embodied_kv.runtime.compiled import Compiler, trace

there = platform.machine() in X86 and cpu_multiplies_bfloat16()
packs = pytest.mark.skipif(not there, reason='no CPU of x86 with units for bfloat16')


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
def test_a_layer_that_is_shared_is_packed_once():
    (first, *_), model = layers(), nn.Sequential()
    model.append(first).append(nn.Sequential(first))
    assert pack(model) == 1 and model[0] is model[1][0]


@packs
def test_trainable_weights_are_not_packed():
    assert pack(layers().requires_grad_(True)) == 0


@packs
def test_a_packed_model_is_saved_as_if_it_were_not():
    model = layers()
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    pack(model)
    found = model.state_dict()
    assert found.keys() == kept.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in kept.items())


@packs
def test_the_digest_of_weights_does_not_see_that_they_are_packed():
    model = Pi05.empty(preset('pi05_small'), 'cpu')
    init_random(model, 0)
    before = weights_digest(model)
    assert pack(model) > 0
    assert any(isinstance(module, PrepackedLinear) for module in model.modules())
    assert weights_digest(model) == before


@pytest.mark.skipif(platform.machine() not in X86, reason='packs on x86')
@pytest.mark.parametrize('tokens', [1, 7, 50])
def test_packed_products_of_float32_differ_by_the_order_of_sums(tokens):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(640, 1280)).requires_grad_(False)
    packed, x = deepcopy(plain), torch.randn(tokens, 640)
    assert pack(packed) == 1
    with torch.inference_mode():
        torch.testing.assert_close(packed(x), plain(x), atol=1e-5, rtol=1e-5)
        # Upper bound of the rounding error of a sum of 640 products.
        exact = nn.functional.linear(x.double(), plain[0].weight.double(), plain[0].bias.double())
        bound = 640 * 2.0**-24 * (x.abs() @ plain[0].weight.abs().T + 1)
        assert ((packed(x) - exact).abs() <= bound).all()


@pytest.mark.skipif(platform.machine() not in X86, reason='packs on x86')
def test_a_packed_head_is_traced_as_one_packed_product(monkeypatch):
    config = replace(preset('tiny_smolvla').backbone, shares_head=False)
    backbone = Backbone(config).requires_grad_(False)
    for weight in backbone.parameters():
        nn.init.normal_(weight)
    hidden, out = torch.randn(2, config.width), torch.zeros(2, config.vocab_size)
    want = backbone.logits(hidden)
    monkeypatch.setattr('embodied_kv.model.prepacked.LEAST', {torch.float32: 1})
    pack(backbone)

    def head():
        out.copy_(backbone.logits(hidden))

    graph = trace(head, Buffers([Buffer('out', out)])).module.graph
    assert sum('packed_product' in str(node.target) for node in graph.nodes) == 1
    head()
    torch.testing.assert_close(out, want)


def test_small_weights_stay_as_they_are():
    for dtype in LEAST:
        model = nn.Sequential(nn.Linear(least(dtype) // 64 - 1, 64)).to(dtype)
        kept = [*model.modules()]
        assert pack(model) == 0 and [*model.modules()] == kept


def test_fewer_parameters_are_packed_where_the_other_product_is_slow(monkeypatch):
    found = {}
    for name in ('AMD EPYC', 'Intel(R) Xeon(R)', ''):
        monkeypatch.setattr(torch.cpu, 'get_capabilities', lambda name=name: {'cpu_name': name})
        found[name] = least(torch.float32), least(torch.bfloat16)
    assert found['AMD EPYC'][0] < found[''][0]
    assert found['Intel(R) Xeon(R)'] == found[''] and found['AMD EPYC'][1] == found[''][1]
    assert least(torch.float64) == float('inf')


@packs
@pytest.mark.slow
def test_compiled_products_read_the_same_packed_weights(tmp_path):
    model, x, out = layers(), torch.randn(3, 320).bfloat16(), torch.zeros(3, 320).bfloat16()
    pack(model)
    with torch.inference_mode():
        want = model(x)
    compiler = Compiler(folder=tmp_path, lower=lower)

    def multiply():
        out.copy_(model(x))

    compiler.compile('mlp', multiply, Buffers([Buffer('out', out)]))()
    assert compiler.made == 1
    code = run_code(compiler.packages['mlp'])
    assert code.count('aoti_torch_cpu__linear_pointwise(') == 2, 'both products, by C'
    assert 'aoti_torch_proxy_executor_call' not in code, 'nothing through Python'
    torch.testing.assert_close(out, want, atol=2**-7, rtol=2**-7)
