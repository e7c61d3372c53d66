"""The spot where a thing is placed depends only on the other things and is clear of them."""

import numpy as np
import pytest

from embodied_kv.demo.sim.spots import GAPS, OFFSET, gaps, spot_beside, spot_in, spots

PLATE = (0.4, 0.1)
OUT = np.array(PLATE) / np.hypot(*PLATE)
FAR, NEAR = np.array(PLATE) + OFFSET * OUT, np.array(PLATE) - OFFSET * OUT


def inside(*others, target=(0.3, -0.1)):
    at = np.array([[PLATE, target, *others]])
    movable = np.arange(at.shape[1])[None] > 0
    spot, free = spot_in(at, movable, np.array([1]), np.array([0]))
    return spot[0], free[0]


def test_spots_lie_in_a_row_outward_from_the_robot():
    np.testing.assert_allclose(spots(np.array(PLATE)), [FAR, NEAR])


@pytest.mark.parametrize(
    ('others', 'spot', 'free'),
    [
        ([], FAR, True),
        ([FAR], NEAR, True),
        ([NEAR], FAR, True),
        ([FAR, NEAR], NEAR, False),
        ([PLATE + 0.002 * OUT], NEAR, False),  # in the middle: no room on either side
        ([(0.5, 0.1), (np.nan, np.nan)], FAR, True),  # next to the plate; an absent thing
    ],
)
def test_the_far_spot_is_taken_unless_something_stands_there(others, spot, free):
    found = inside(*others)
    np.testing.assert_allclose(found[0], spot)
    assert found[1] == free


def test_the_thing_that_is_carried_does_not_move_its_spot():
    for target in (FAR, NEAR, PLATE, (0.2, 0.2)):
        np.testing.assert_allclose(inside(target=target)[0], FAR)


def beside(*others, target=(0.3, -0.3), place=PLATE):
    at = np.array([[place, target, *others]])
    radius = np.full(at.shape[:2], 0.03)
    spot, free = spot_beside(at, radius, np.array([1]), np.array([0]))
    at[0, 1] = spot[0]
    return spot[0], free[0], gaps(at, radius, np.array([1]), np.array([0]))[0]


def test_beside_is_inward_then_outward_then_left_then_right():
    across = np.array([-OUT[1], OUT[0]])
    ways, wanted = (-OUT, OUT, across, -across), np.repeat(GAPS, 2)
    order = [np.array(PLATE) + (0.06 + gap) * way for way, gap in zip(ways, wanted, strict=True)]
    for taken in range(4):
        spot, free, gap = beside(*order[:taken])
        np.testing.assert_allclose(spot, order[taken])
        assert free and np.isclose(gap, wanted[taken])
    assert not beside(*order)[1]


def test_beside_stays_in_reach_and_on_the_table():
    assert np.hypot(*beside(place=(0.26, 0.0))[0]) > 0.26  # not into the robot's base
    assert np.hypot(*beside((0.44, 0.0), place=(0.53, 0.0))[0]) < 0.58


def test_beside_does_not_depend_on_the_thing_that_is_carried():
    spot = beside()[0]
    for target in (spot, (0.4, -0.1), PLATE):
        np.testing.assert_allclose(beside(target=target)[0], spot)
