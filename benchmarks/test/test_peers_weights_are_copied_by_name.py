"""Weights copied into LeRobot's model are those that the engine would read from its checkpoint."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from benchmarks.common.command import BenchmarkError
from benchmarks.peers.weights import copy
from embodied_kv.model.parity.golden import Golden
from embodied_kv.model.pi05 import Pi05
from embodied_kv.model.random import init_random
from embodied_kv.model.weights import Weights, fill

GOLDEN = Path(__file__).parents[2] / 'test/data' / 'pi05_tiny_a.safetensors'
CONFIG = Golden(GOLDEN).config
HEAD = 'model.paligemma_with_expert.gemma_expert.lm_head.weight'
BIAS = 'model.action_in_proj.bias'


class Theirs(nn.Module):
    """A model that has only tensors, with LeRobot's names."""

    def __init__(self):
        super().__init__()
        tensors = load_file(GOLDEN).items()
        self.tensors = {n: torch.zeros_like(t) for n, t in tensors if n.startswith('model.')}

    def state_dict(self):
        return self.tensors


@pytest.fixture
def ours():
    model = Pi05.empty(CONFIG, 'cpu')
    init_random(model, seed=3)
    return model


def test_what_is_read_back_is_what_was_copied(ours, tmp_path):
    theirs = Theirs()
    numbers = copy(ours, theirs)
    save_file(theirs.tensors, tmp_path / 'model.safetensors')
    read = Pi05.empty(CONFIG, 'cpu')
    fill(read, Weights(tmp_path), CONFIG)
    state = ours.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in read.state_dict().items())
    assert numbers == sum(tensor.numel() for tensor in state.values())


def test_what_nothing_uses_is_left_as_it_is(ours):
    theirs = Theirs()
    theirs.tensors[HEAD] = torch.full((2, 2), 5.0)
    copy(ours, theirs)
    assert (theirs.tensors[HEAD] == 5).all()


@pytest.mark.parametrize(
    'name, tensor, said',
    [
        ('model.memory.weight', torch.zeros(2), 'only one of the two models has: memory.weight'),
        (BIAS, torch.zeros(2), r'action_in_proj.bias is \[2\], ours is '),
    ],
)
def test_what_does_not_fit_is_named(ours, name, tensor, said):
    theirs = Theirs()
    theirs.tensors[name] = tensor
    with pytest.raises(BenchmarkError, match=said):
        copy(ours, theirs)


def test_what_is_missing_is_named(ours):
    theirs = Theirs()
    del theirs.tensors[BIAS]
    with pytest.raises(
        BenchmarkError, match='only one of the two models has: action_in_proj.bias'
    ):
        copy(ours, theirs)
