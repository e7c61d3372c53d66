"""Every graph of an engine writes only the buffers that it declares."""

from benchmarks.common.declared_writes import DeclaredWrites
from embodied_kv.config import TINY
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.shapes import Kind
from embodied_kv.runtime.graph_cache import GraphCache


def test_every_graph_writes_its_buffers_alone(make_engine, policy, monkeypatch):
    config = make_engine(
        max_batch_robots=3, streams=5, decode_batch_multiple=2, decode_tokens=20
    ).config
    monkeypatch.setattr(GraphCache, 'watch', DeclaredWrites)  # raises UndeclaredWriteError
    engine = Engine(policy, config)
    assert engine.graphs.captures == len(engine.graphs)
    engine.kv.check_integrity()


def test_there_is_a_graph_for_every_bucket_and_none_for_a_length(make_engine):
    engine = make_engine(max_batch_robots=3, streams=5, decode_batch_multiple=2, decode_tokens=20)

    def shapes(kind):
        return [shape[1:] for shape in engine.graphs.shapes if shape.kind is kind]

    lengths = sorted({tokens for _, tokens in shapes(Kind.PREFILL)})
    assert shapes(Kind.ENCODE_IMAGES) == [(n, 0) for n in range(1, 3 * len(TINY.views) + 1)]
    assert shapes(Kind.PREFILL) == [(rows, n) for rows in (1, 2, 3) for n in lengths]
    assert lengths[-1] == TINY.prefix_tokens and len(lengths) <= 16
    assert shapes(Kind.START) == shapes(Kind.DENOISE)
    assert shapes(Kind.DENOISE) == [(1, 0), (2, 0), (3, 0)]  # for any number of Euler steps
    steps, queries = [(2, 1), (4, 1), (6, 1)], [(1, 8), (1, 16), (1, 20)]
    assert shapes(Kind.EXTEND) == steps + queries
    assert shapes(Kind.DRAW) == [(2, 0), (4, 0), (6, 0), (1, 0)]
