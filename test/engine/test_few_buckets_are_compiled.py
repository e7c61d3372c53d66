"""Default parameters compile at most twelve computations: the listed ones, in their order."""

import pytest

from embodied_kv.config import PRESETS, TINY, preset
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.shapes import Kind, compiled_shapes
from embodied_kv.engine_config import EngineConfig
from embodied_kv.runtime.compiled import Compiler

SERVED = sorted(set(PRESETS) - {'needle'})  # needle is for questions only


@pytest.mark.parametrize('name', SERVED)
def test_twelve_at_default_parameters(name):
    shapes = compiled_shapes(preset(name), EngineConfig(compile='auto'))
    assert len(shapes) == len(set(shapes)) <= 12
    assert {shape.kind for shape in shapes} == {
        Kind.ENCODE_IMAGES,
        Kind.PREFILL,
        Kind.DENOISE,
        Kind.EXTEND,
    }


def test_none_where_it_is_off():
    assert compiled_shapes(TINY, EngineConfig()) == []


def test_no_query_is_where_none_can_be_so_long():
    shapes = compiled_shapes(TINY, EngineConfig(compile='auto', decode_tokens=8))
    assert [s.tokens for s in shapes if s.kind is Kind.EXTEND and s.tokens > 1] == []


@pytest.mark.parametrize('sizes', [{}, dict(max_batch_robots=3, streams=5, decode_tokens=20)])
def test_an_engine_asks_for_these_in_this_order(policy, monkeypatch, sizes):
    asked = []
    monkeypatch.setattr(Compiler, 'compile', lambda self, name, *_: asked.append(name))
    config = EngineConfig(compile='auto', **sizes)
    Engine(policy, config)
    assert asked == [str(shape) for shape in compiled_shapes(TINY, config)]
