"""A graph whose buffer was rebound refuses to run, because it would use the former memory."""

import pytest
import torch
from captures import capture, watched

from embodied_kv.runtime.buffer import Buffer, BufferMovedError


def test_replay_is_refused_before_anything_runs(device):
    x, y = (Buffer(name, torch.zeros((2,), dtype=torch.float32, device=device)) for name in 'xy')

    def run():
        y.tensor.add_(1)

    graph = capture(watched(device), 'add', run, [x, y])
    graph.replay()
    x.tensor.data = torch.zeros(2, device=device)
    with pytest.raises(BufferMovedError, match="buffer 'x' must stay"):
        graph.replay()
    assert y.tensor.tolist() == [1, 1]
    assert graph.replays == 1


def test_a_function_that_rebinds_is_not_captured():
    x = Buffer('x', torch.zeros((2,), dtype=torch.float32))

    def run():
        x.tensor.data = torch.ones(2)

    cache = watched()
    with pytest.raises(BufferMovedError, match="buffer 'x'"):
        capture(cache, 'rebinds', run, [x])
    assert cache.captures == len(cache) == 0
