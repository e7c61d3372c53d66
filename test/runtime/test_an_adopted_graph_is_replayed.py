"""A graph captured elsewhere behaves like one captured here."""

import pytest
import torch

from embodied_kv.runtime.buffer import Buffer, Moved
from embodied_kv.runtime.graph import Graph


class Foreign:
    """What another library would hand over."""

    def __init__(self, x):
        self.x = x

    def replay(self):
        self.x.add_(1)


def test_it_is_replayed_over_its_buffers():
    x = Buffer.zeros('x', (2,), torch.float32)
    graph = Graph.adopt('foreign', Foreign(x.tensor), [x])
    graph.replay()
    graph.replay()
    assert x.tensor.tolist() == [2, 2]
    assert (graph.name, list(graph.buffers), graph.replays) == ('foreign', [x], 2)


def test_its_buffers_are_checked_too():
    x = Buffer.zeros('x', (2,), torch.float32)
    graph = Graph.adopt('foreign', Foreign(x.tensor), [x])
    x.tensor.resize_(100)
    with pytest.raises(Moved):
        graph.replay()


def test_what_cannot_be_replayed_is_refused():
    with pytest.raises(TypeError, match=r"'foreign' needs a replay\(\), which int lacks"):
        Graph.adopt('foreign', 3, [])


def test_a_cuda_graph_is_adopted_as_it_is(cuda):
    x = Buffer.zeros('x', (2,), torch.float32, cuda)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        x.tensor.add_(1)
    Graph.adopt('foreign', captured, [x]).replay()
    assert x.tensor.tolist() == [1, 1]
