"""Numbers to a key and back; different numbers, different keys."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.runtime.shape_key import BITS, ShapeKey

FIELDS = st.fixed_dictionaries({name: st.integers(0, (1 << b) - 1) for name, b in BITS.items()})


def test_the_fields_fill_64_bits():
    assert sum(BITS.values()) == 64


@given(FIELDS)
def test_fields_of_a_key_equal_what_it_was_made_of(fields):
    key = ShapeKey.of(**fields)
    assert key.fields == fields
    assert list(key.fields) == list(BITS)
    assert 0 <= key.value < 1 << 64


@given(st.integers(0, (1 << 64) - 1))
def test_the_key_of_its_fields_equals_the_key(value):
    assert ShapeKey.of(**ShapeKey(value).fields) == ShapeKey(value)


@given(FIELDS, FIELDS)
def test_keys_are_equal_if_and_only_if_their_fields_are(a, b):
    one, two = ShapeKey.of(**a), ShapeKey.of(**b)
    assert (one == two) == (one.value == two.value) == (a == b)
    assert len({one, two}) == (1 if a == b else 2)


@given(FIELDS, st.sampled_from(list(BITS)), st.integers(1, 1 << 70), st.booleans())
def test_a_number_out_of_range_is_refused(fields, name, excess, negative):
    bad = -excess if negative else (1 << BITS[name]) - 1 + excess
    with pytest.raises(
        ValueError, match=re.escape(f'{name} must be 0 ... ') + rf'\d+, not {bad}$'
    ):
        ShapeKey.of(**{**fields, name: bad})


def test_what_is_no_integer_is_refused():
    with pytest.raises(TypeError, match='float'):
        ShapeKey.of(kind=1, rows=2.0)


@pytest.mark.parametrize('value', [-1, 1 << 64])
def test_a_value_of_more_than_64_bits_is_refused(value):
    with pytest.raises(ValueError, match=f'64 bits, not the value {value}'):
        ShapeKey(value)


def test_a_key_reads_as_its_fields():
    assert str(ShapeKey.of(kind=3, rows=4, steps=10)) == 'kind=3 rows=4 tail=0 steps=10'
