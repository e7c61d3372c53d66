"""A segment must have a plain id, a known kind and printable text; anything else is refused."""

import pytest
import torch

from embodied_kv.memory.segment import (
    KINDS,
    MAX_ID,
    MAX_TEXT,
    RobotMemoryError,
    Segment,
    Unit,
    UnitKv,
)


@pytest.mark.parametrize('kind', KINDS)
def test_every_kind_is_taken(kind):
    assert Segment('cup 1', kind, 'on the table\n\tclean').version == 1


@pytest.mark.parametrize('kind', ['', 'objects', 'Object', None, 7])
def test_an_unknown_kind_is_refused(kind):
    with pytest.raises(
        RobotMemoryError, match="kind of segment 'cup' must be one of object, place, agent"
    ):
        Segment('cup', kind, 'x')


@pytest.mark.parametrize('id', ['', '  ', None, 7, 'a\0', 'a\nb', 'a\ud800', 'x' * (MAX_ID + 1)])
def test_an_id_is_a_short_printable_line(id):
    with pytest.raises(RobotMemoryError, match='segment id must '):
        Segment(id, 'object', 'x')


@pytest.mark.parametrize('text', ['', '\n', None, b'x', 'a\0b', '\ud800', 'x' * (MAX_TEXT + 1)])
def test_a_text_is_printable_and_short(text):
    with pytest.raises(RobotMemoryError, match="text of segment 'cup' must "):
        Segment('cup', 'object', text)


def test_key_identifies_what_kv_is_computed_from():
    cup, bin = Segment('cup', 'object', 'in hand'), Segment('bin', 'place', 'empty')
    unit = Unit((cup, bin))
    assert unit.key == Unit((Segment('cup', 'object', 'in hand', 7, 9), bin), group=3).key
    others = [(bin, cup), (cup,), (Segment('cup', 'object', 'in hand.'), bin)]
    assert len({unit.key, *(Unit(segments).key for segments in others)}) == 4
    assert unit.ids == ('cup', 'bin')


def test_a_unit_needs_a_segment():
    with pytest.raises(ValueError, match='must not be empty'):
        Unit(())


@pytest.mark.parametrize(
    ('k', 'v', 'lengths'),
    [
        ((2, 1, 3, 4), (2, 1, 3, 5), (3,)),
        ((1, 3, 4), (1, 3, 4), (3,)),
        ((2, 1, 0, 4), (2, 1, 0, 4), (0,)),
        ((2, 1, 3, 4), (2, 1, 3, 4), (2,)),
        ((2, 1, 3, 4), (2, 1, 3, 4), (1, 2)),
    ],
)
def test_kv_has_the_shape_of_its_unit(k, v, lengths):
    unit = Unit((Segment('cup', 'object', 'x'),))
    with pytest.raises(ValueError, match=r'must both be|must sum to'):
        UnitKv(unit, torch.zeros(k), torch.zeros(v), lengths)
