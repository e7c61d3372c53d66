"""The memory table states the bytes that an engine allocates; docs/gpu.md has that table."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.common.scene import FullPolicy
from benchmarks.gpu import memory
from embodied_kv.config import NEEDLE, PI05, TINY
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig

PAGE = Path(__file__).resolve().parents[2] / 'docs' / 'gpu.md'
SMALL = dict(decode_tokens=16)


@pytest.fixture(
    params=[
        (TINY, dict(rows=3, streams=1, compressed_rows=0)),
        (TINY, dict(rows=9, streams=5, decode_tokens=40, compressed_rows=3)),
        (replace(TINY, dtype='bfloat16', views=('front',)), dict(rows=4, streams=2)),
        (replace(NEEDLE, vision=replace(NEEDLE.vision, patch_size=64)), dict(rows=4, streams=3)),
    ],
    ids=['few', 'many', 'bfloat16', 'two KV heads'],
)
def engine(request):
    config, sizes = request.param
    return Engine(FullPolicy.random(config), EngineConfig(**SMALL | sizes))


def test_weights_and_arenas_are_exact(engine):
    found = memory.taken(engine.policy.config, engine.config)
    state = engine.policy.model.state_dict().values()
    assert found.weights == sum(tensor.nbytes for tensor in state)
    assert found.arenas == engine.kv.stats().bytes
    assert found.prefixes == engine.kv.prefixes.bytes
    assert found.decode_kv == engine.kv.decode_kv.bytes


def test_buffers_of_graphs_fit_into_the_estimate_of_work(engine):
    kv = {m.data_ptr() for m in engine.kv.memory if hasattr(m, 'data_ptr')}
    others = sum(b.bytes for b in engine.graphs.buffers if b.address not in kv)
    found = memory.taken(engine.policy.config, engine.config)
    assert others <= found.work < found.arenas + found.weights


def test_one_row_more_than_the_most_does_not_fit():
    room = 0.7
    count = memory.most(TINY, room)

    def total(rows):
        return memory.taken(TINY, EngineConfig(rows=rows, streams=rows)).total / memory.GIB

    assert 3 < count < memory.MOST and total(count) <= room < total(count + 1)
    assert memory.most(TINY, 0.1) == 0


def test_the_page_has_the_tables_of_now():
    tables = '\n'.join(memory.markdown(PI05))
    assert tables in PAGE.read_text(), 'python -m benchmarks.gpu.memory prints them'
