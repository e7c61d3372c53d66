"""A shape gets its own graph or an error; the one unused for longest makes room."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.runtime.buffer import Buffer
from embodied_kv.runtime.capture import Pool
from embodied_kv.runtime.graph import Graph
from embodied_kv.runtime.shape_key import ShapeKey
from embodied_kv.runtime.variants import MissingVariant, Variants


class Nothing:
    def replay(self):
        pass


def key(rows):
    return ShapeKey.of(kind=1, rows=rows)


def graph(rows):
    return Graph.adopt(f'of {rows} rows', Nothing(), [])


OPERATIONS = st.lists(st.tuples(st.sampled_from(['add', 'get']), st.integers(0, 6)))


@given(st.integers(1, 5), OPERATIONS)
def test_it_equals_a_list_in_order_of_use(capacity, operations):
    variants, model = Variants(capacity), []  # model: rows, unused for longest first
    graphs = {}
    for name, rows in operations:
        if name == 'add' and rows in model:
            with pytest.raises(ValueError, match=f"has a graph: 'of {rows} rows'"):
                variants.add(key(rows), graph(rows))
        elif name == 'add':
            expected = key(model.pop(0)) if len(model) == capacity else None
            graphs[rows] = graph(rows)
            assert variants.add(key(rows), graphs[rows]) == expected
            model.append(rows)
        elif rows in model:
            assert variants.get(key(rows)) is graphs[rows]
            model.remove(rows)
            model.append(rows)
        else:
            with pytest.raises(MissingVariant):
                variants.get(key(rows))
        assert variants.keys() == tuple(map(key, model))
        assert len(variants) == len(model) <= capacity
        assert all((key(n) in variants) == (n in model) for n in range(7))


def test_a_missing_shape_is_an_error_that_says_what_there_is():
    variants = Variants(4)
    with pytest.raises(MissingVariant, match='there are: none'):
        variants.get(key(2))
    variants.add(key(2), graph(2))
    variants.add(key(8), graph(8))
    with pytest.raises(MissingVariant) as error:
        variants.get(ShapeKey.of(kind=1, rows=4, steps=10))
    assert str(error.value) == (
        'no graph was captured for kind=1 rows=4 tail=0 steps=10, or it made room for another '
        '(capacity 4); there are: kind=1 rows=2 tail=0 steps=0; kind=1 rows=8 tail=0 steps=0'
    )


def test_a_missing_shape_captures_nothing():
    pool, x = Pool(), Buffer.zeros('x', (4,), torch.float32)

    def double():
        x.tensor[:2].mul_(2)

    variants = Variants(1)
    variants.add(key(2), Graph.capture('double', double, [x], pool))
    with pytest.raises(MissingVariant):
        variants.get(key(4))
    variants.get(key(2)).replay()
    assert pool.captures == 1


def test_a_table_of_nothing_is_refused():
    with pytest.raises(ValueError, match='at least 1, not 0'):
        Variants(0)
