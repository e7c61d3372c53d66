"""A layer launches few kernels: values derived from weights are recomputed only on a change."""

import copy
from collections import Counter

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.common.declared_writes import DeclaredWrites
from benchmarks.common.hostile_device import HostileDevice
from embodied_kv.model.layers import RmsNorm, Rope, rms, rotate
from embodied_kv.runtime.buffer import Buffer, Buffers
from embodied_kv.runtime.stream import Stream

WIDTH = 8
X = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(0))


class Count(TorchDispatchMode):
    """Counts operations other than views, by name."""

    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not function.is_view and function._schema.name != 'aten::unflatten':
            self.names[function._schema.name.removeprefix('aten::')] += 1
        return function(*args, **(kwargs or {}))


def made(weight=0.5, dtype=torch.float32, learns=False):
    norm = RmsNorm(WIDTH, 1e-6).to(dtype).requires_grad_(learns)
    with torch.no_grad():
        norm.weight.fill_(weight)
    return norm


def normed(norm):
    with torch.inference_mode():
        return norm(X.to(norm.weight.dtype))


def expected(norm):
    with torch.no_grad():
        x = X.to(norm.weight.dtype)
        return rms(x, 1 + norm.weight.detach().clone().float(), norm.eps)


def filled(norm):
    norm.weight.fill_(2.0)


def filled_through_its_state(norm):
    norm.state_dict()['weight'].copy_(torch.full((WIDTH,), 3.0))


def loaded(norm):
    norm.load_state_dict({'weight': torch.full((WIDTH,), 4.0)})


def loaded_into_new_memory(norm):
    norm.load_state_dict({'weight': torch.full((WIDTH,), 5.0)}, assign=True)


def replaced(norm):
    norm.weight = nn.Parameter(torch.full((WIDTH,), 6.0), requires_grad=False)


def replaced_twice(norm):
    replaced(norm)
    norm.weight = nn.Parameter(torch.full((WIDTH,), 7.0), requires_grad=False)


def narrowed_and_widened(norm):
    norm.weight.fill_(1 / 3)
    normed(norm)
    norm.to(torch.bfloat16).to(torch.float32)


def made_wider_in_number(norm):
    norm.weight = nn.Parameter(torch.zeros(WIDTH, dtype=torch.float64), requires_grad=False)


@pytest.mark.parametrize(
    'change',
    [
        filled,
        torch.inference_mode()(filled),
        filled_through_its_state,
        loaded,
        loaded_into_new_memory,
        replaced,
        replaced_twice,
        narrowed_and_widened,
        made_wider_in_number,
    ],
)
def test_a_norm_computes_with_its_weight_as_it_is(change):
    norm = made()
    assert torch.equal(normed(norm), expected(norm))
    for one in (norm, copy.deepcopy(norm)):
        with torch.no_grad():
            change(one)
        assert torch.equal(normed(one), expected(one))


def test_a_copy_that_is_written_as_often_has_a_scale_of_its_own():
    norm = made()
    normed(norm)
    other = copy.deepcopy(norm)
    while other.weight._version < norm.weight._version:
        with torch.no_grad():
            other.weight.fill_(9.0)
    assert torch.equal(normed(other), expected(other))
    assert torch.equal(normed(norm), expected(norm))


@pytest.mark.parametrize('fused', [False, True])
def test_a_norm_learns(fused):
    norm = made(learns=True)
    optimizer = torch.optim.AdamW(norm.parameters(), lr=0.1, fused=fused)
    losses = []
    for _ in range(3):
        assert torch.equal(normed(norm), expected(norm))  # as an evaluation during training
        loss = (norm(X) - 2 * X).square().mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]
    norm.requires_grad_(False)
    assert torch.equal(normed(norm), expected(norm))


def test_a_gradient_passes_a_weight_that_does_not_learn():
    norm, x = made(), X.clone().requires_grad_()
    normed(norm)
    norm(x).sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_the_scale_of_a_norm_is_computed_once(dtype):
    norm = made(dtype=dtype)
    normed(norm)
    with torch.inference_mode(), Count() as count:
        for _ in range(4):
            norm(X.to(dtype))
    assert count.names['add'] == 0 and count.names['rms_norm'] == 4
    assert list(norm.state_dict()) == ['weight'] and not list(norm.buffers())


def test_a_new_scale_lies_where_the_former_one_lay():
    norm = made()
    with torch.inference_mode():
        before = norm.scale().data_ptr()
        filled(norm)
        assert norm.scale().data_ptr() == before and norm.scale().tolist() == [3.0] * WIDTH


def test_a_scale_is_there_before_another_stream_may_read_it():
    norm, order = made(), []
    with HostileDevice():
        one, other = Stream.on('cpu'), Stream.on('cpu')
        with one.use():
            one.launch(lambda: order.append('before it is made'))
            normed(norm)
        with other.use():
            normed(norm)
            other.launch(lambda: order.append('used'))
        other.synchronize()
    assert order == ['before it is made', 'used']


def test_a_scale_is_made_unseen_by_what_watches_or_traces_the_computation():
    out, norm = torch.zeros_like(X), made()
    with torch.inference_mode():
        codes = [make_fx(lambda: out.copy_(norm(X)))().code for _ in range(2)]
        with DeclaredWrites(Buffers([Buffer('out', out)])):
            norm(X)
        norm.weight.fill_(2.0)
        with DeclaredWrites(Buffers([Buffer('out', out)])):
            assert torch.equal(norm(X), expected(norm))
    assert codes[0] == codes[1] and 'add.Tensor' not in codes[0]  # 1 + weight


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.float64])
def test_a_rotation_is_four_operations_and_exact(dtype):
    x = torch.randn(2, 3, 5, 16).to(dtype)[:, :, :4]
    positions = torch.tensor([[0, 1, 2], [700, 9000, 31000]])
    cos, sin = rope = Rope(16, 10_000.0)(positions, dtype)
    first, second = x.chunk(2, -1)
    wanted = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    with torch.inference_mode(), Count() as count:
        turned = rotate(x, rope)
    assert torch.equal(turned.view(torch.uint8), wanted.view(torch.uint8))
    assert count.names == {'mul': 2, 'sub_': 1, 'add_': 1}


def test_a_rotation_has_a_gradient():
    x = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    rope = Rope(4, 10.0)(torch.tensor([[1, 5]]), torch.float64)
    assert torch.autograd.gradcheck(lambda x: rotate(x, rope), x)
