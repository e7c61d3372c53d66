"""A replay equals the function over the same buffers, bit for bit, and capturing changes nothing.

On a CPU the graph calls the function; on CUDA it replays the capture.
"""

import pytest
import torch
from captures import capture, watched

from embodied_kv.runtime.buffer import Buffer


class Layers:
    """Three small layers over a state that each run reads and writes."""

    def __init__(self, device):
        generator = torch.Generator().manual_seed(0)
        self.weights = (torch.randn(3, 64, 64, generator=generator) / 8).to(device)
        self.x = Buffer('x', torch.randn(4, 64, generator=generator).to(device))
        self.state = Buffer('state', torch.zeros((4, 64), dtype=torch.float32, device=device))
        self.count = Buffer('count', torch.zeros((1,), dtype=torch.int64, device=device))
        self.buffers = [self.x, self.state, self.count]
        self.calls = 0

    def __call__(self):
        self.calls += 1
        h = self.x.tensor
        for weight in self.weights:
            h = torch.nn.functional.rms_norm(torch.tanh(h @ weight) + self.state.tensor, (64,))
        self.state.tensor.lerp_(h.softmax(-1), 0.5)
        self.count.tensor.add_(1)

    def bytes(self):
        return [buffer.tensor.cpu().numpy().tobytes() for buffer in self.buffers]


def inputs(device):
    return torch.randn(5, 4, 64, generator=torch.Generator().manual_seed(1)).to(device)


def test_replays_equal_eager_calls_bit_for_bit(device):
    eager, replayed = Layers(device), Layers(device)
    graph = capture(watched(device), 'layers', replayed, replayed.buffers)
    for x in inputs(device):
        eager.x.write(x)
        replayed.x.write(x)
        with torch.inference_mode():
            eager()
        graph.replay()
        assert replayed.bytes() == eager.bytes()
    assert eager.count.tensor.tolist() == [5]
    assert graph.replays == 5


def test_capture_leaves_the_buffers_as_they_were(device):
    layers = Layers(device)
    before = layers.bytes()
    capture(watched(device), 'layers', layers, layers.buffers)
    assert layers.calls >= 1
    assert layers.bytes() == before


def test_graphs_of_one_pool_do_not_disturb_each_other(device):
    cache, runs = watched(device), [Layers(device), Layers(device)]
    graphs = [capture(cache, f'layers {i}', run, run.buffers) for i, run in enumerate(runs)]
    for x in inputs(device):
        for layers, graph in zip(runs, graphs, strict=True):
            layers.x.write(x)
            graph.replay()
    assert runs[0].bytes() == runs[1].bytes()
    assert cache.captures == 2


def test_on_cuda_a_replay_calls_nothing(cuda):
    layers = Layers(cuda)
    graph = capture(watched(cuda), 'layers', layers, layers.buffers)
    calls = layers.calls
    graph.replay()
    assert layers.calls == calls


def test_a_function_that_fails_leaves_the_buffers_as_they_were(device):
    x = Buffer('x', torch.zeros((3,), dtype=torch.float32, device=device))

    def fail():
        x.tensor.fill_(7)
        raise MemoryError('no memory')

    cache = watched(device)
    with pytest.raises(MemoryError, match='no memory'):
        capture(cache, 'fails', fail, [x])
    assert x.tensor.tolist() == [0, 0, 0]
    assert cache.captures == len(cache) == 0


def test_a_result_outside_the_buffers_is_refused():
    x = Buffer('x', torch.zeros((3,), dtype=torch.float32))
    with pytest.raises(TypeError, match='must return None; write its results into its buffers'):
        capture(watched(), 'returns', lambda: x.tensor + 1, [x])


def test_a_buffer_on_another_device_is_refused():
    x = Buffer('x', torch.zeros(3, device='meta'))
    with pytest.raises(ValueError, match="buffer 'x' must be on cpu, .*got meta"):
        capture(watched(), 'far', lambda: None, [x])


def test_a_name_twice_is_refused():
    x, y = (Buffer('x', torch.zeros((3,), dtype=torch.float32)) for _ in range(2))
    with pytest.raises(ValueError, match="must be unique .got 'x' twice."):
        capture(watched(), 'twins', lambda: None, [x, y])
