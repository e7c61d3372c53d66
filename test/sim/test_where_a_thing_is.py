"""The place of a thing in memory's words: held, in or on a place, on the table, or its side."""

from dataclasses import replace

import numpy as np
import pytest

from embodied_kv.demo.sim.language import where_is
from embodied_kv.demo.sim.phases import TableMoment
from embodied_kv.demo.sim.scene import SIZES
from embodied_kv.demo.sim.tables import Orders, Tables
from embodied_kv.demo.sim.tabletop import ObjectTruth, Truth
from embodied_kv.demo.sim.tasks import Task


def thing(name, x, y, z=0.02):
    colour, shape = name.split()
    return ObjectTruth(name, shape, colour, np.array([x, y, z]), 0.0, np.array(SIZES[shape]))


PLACES = thing('cyan bin', 0.4, 0.1), thing('green plate', 0.5, -0.1)


@pytest.mark.parametrize(
    ('x', 'y', 'z', 'true'),
    [
        (0.41, 0.1, 0.03, ('in the cyan bin',)),
        (0.5, -0.1, 0.03, ('on the green plate',)),
        (0.3, -0.05, 0.02, ('on the table',)),
        (0.3, 0.0, 0.02, ('on the table', 'next to the cyan bin')),
        (0.3, 0.26, 0.02, ('on the table', 'on the left')),
        (0.3, -0.26, 0.02, ('on the table', 'on the right')),
        (0.3, 0.6, -0.7, ('on the floor',)),
    ],
)
def test_it_is_where_it_lies(x, y, z, true):
    truth = Truth((thing('red cube', x, y, z), *PLACES), np.zeros(3), '')
    assert where_is('red cube', truth) == true
    assert where_is('red cube', replace(truth, held='red cube')) == ('held by the robot',)


@pytest.mark.parametrize(
    ('under', 'x', 'z', 'true'),
    [
        ('blue cube', 0.415, 0.0735, ('in the cyan bin',)),  # on the cube in the bin
        ('blue cylinder', 0.41, 0.0925, ('in the cyan bin',)),
        ('blue cube', 0.415, 0.09, ('on the table',)),  # above it: it falls
        ('blue cube', 0.445, 0.0735, ('on the table',)),  # next to it: the same
    ],
)
def test_a_thing_on_a_thing_in_a_bin_is_in_the_bin(under, x, z, true):
    height = SIZES[under.split()[1]][2]
    below = thing(under, 0.40, 0.1, 0.006 + height / 2)
    truth = Truth((thing('red cube', x, 0.1, z), below, *PLACES), np.zeros(3), '')
    assert where_is('red cube', truth)[0] == true[0]
    assert is_placed(truth) == (true[0] == 'in the cyan bin')
    alone = Truth((thing('red cube', x, 0.1, z), *PLACES), np.zeros(3), '')
    assert where_is('red cube', alone)[0] == 'on the table' and not is_placed(alone)


def is_placed(truth):
    """Return whether the expert regards the red cube as put into the cyan bin."""
    names = [one.name for one in truth.things]
    orders = Orders.of([Task('put', 'red cube', 'cyan bin')], [names])
    return bool(TableMoment(np.zeros((1, 7)), Tables.of([truth]), orders).placed[0])


def test_a_thing_that_is_not_there_is_nowhere():
    with pytest.raises(KeyError, match='blue cube'):
        where_is('blue cube', Truth(PLACES, np.zeros(3), 'blue cube'))
