"""A table finds exactly the shape that was asked for, and never lets one go for another."""

import pytest

from embodied_kv.runtime.variants import MissingVariant, Shape, Variants


def filled(*shapes, capacity=8):
    table = Variants(capacity)
    for shape in shapes:
        table.add(shape, f'made for {shape}')
    return table


def test_each_shape_finds_its_own():
    shapes = [Shape('step', 1), Shape('step', 2), Shape('step', 2, 8), Shape('query', 2, 8)]
    table = filled(*shapes)
    assert [table.get(shape) for shape in shapes] == [f'made for {shape}' for shape in shapes]
    assert [shape for shape, _ in table.items()] == shapes and len(table) == 4


@pytest.mark.parametrize('near', [Shape('step', 3), Shape('step', 2, 1)])
def test_what_is_near_is_missing(near):
    table = filled(Shape('step', 2), Shape('query', 2))
    with pytest.raises(MissingVariant, match=f'{near}; of its kind there are: step 2x0$'):
        table.get(near)


def test_where_there_is_none_of_its_kind_it_says_so():
    with pytest.raises(MissingVariant, match='query 1x0; of its kind there are: none'):
        filled(Shape('step', 1)).get(Shape('query', 1))


def test_a_shape_is_made_once():
    table = filled(Shape('step', 1))
    with pytest.raises(ValueError, match='step 1x0 is there already'):
        table.add(Shape('step', 1), 'another')


def test_a_full_one_refuses_and_keeps_all():
    shapes = Shape('step', 1), Shape('step', 2)
    table = filled(*shapes, capacity=2)
    with pytest.raises(ValueError, match='no room for step 3x0: 2 shapes at most'):
        table.add(Shape('step', 3), 'another')
    assert [shape for shape, _ in table.items()] == list(shapes)
