"""A cache returns the graph of exactly the requested shape, and never evicts one."""

import pytest
import torch
from captures import NoRows

from embodied_kv.runtime import graph_cache
from embodied_kv.runtime.buffer import Buffer
from embodied_kv.runtime.graph_cache import GraphCache, MissingShapeError, Shape


def add(cache, shape):
    x = Buffer('x', torch.zeros((1,), dtype=torch.float32))
    return cache.capture(shape, lambda _: None, NoRows(), writes=[x])


def filled(*shapes):
    cache = GraphCache()
    return cache, [add(cache, shape) for shape in shapes]


def test_each_shape_finds_its_own():
    shapes = [Shape('step', 1), Shape('step', 2), Shape('step', 2, 8), Shape('query', 2, 8)]
    cache, made = filled(*shapes)
    assert all(cache[shape] is graph for shape, graph in zip(shapes, made, strict=True))
    assert cache.shapes == shapes and len(cache) == cache.captures == 4
    assert [graph.name for graph in made] == ['step 1x0', 'step 2x0', 'step 2x8', 'query 2x8']


@pytest.mark.parametrize('near', [Shape('step', 3), Shape('step', 2, 1)])
def test_a_similar_shape_is_missing(near):
    cache, _ = filled(Shape('step', 2), Shape('query', 2))
    with pytest.raises(MissingShapeError, match=f'got {near}.; captured of its kind: step 2x0$'):
        cache[near]


def test_the_error_states_that_there_is_none_of_its_kind():
    cache, _ = filled(Shape('step', 1))
    with pytest.raises(MissingShapeError, match='got query 1x0.; captured of its kind: none'):
        cache[Shape('query', 1)]


def test_a_shape_is_captured_once():
    cache, made = filled(Shape('step', 1))
    with pytest.raises(ValueError, match='captured once .got step 1x0 again'):
        add(cache, Shape('step', 1))
    assert cache[Shape('step', 1)] is made[0] and cache.captures == 1


def test_a_full_cache_refuses_another_shape_and_keeps_all(monkeypatch):
    monkeypatch.setattr(graph_cache, 'CAPACITY', 2)
    cache, made = filled(Shape('step', 1), Shape('step', 2))
    with pytest.raises(ValueError, match='at most 2 graphs .got step 3x0 as well'):
        add(cache, Shape('step', 3))
    assert [cache[shape] for shape in cache.shapes] == made and cache.captures == 2
