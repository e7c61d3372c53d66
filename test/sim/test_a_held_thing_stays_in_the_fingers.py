"""A held cylinder moves with the fingers: they carry it, and nothing else accelerates it."""

import numpy as np
import pytest

from embodied_kv.demo.sim import kinematics
from embodied_kv.demo.sim.tabletop import SceneConfig, Tabletop

CYLINDER = SceneConfig(objects=(1, 1), receptacles=(0, 0), shapes=('cylinder',))
OPEN, CLOSED = 0.04, 0.0  # m
SECONDS = 1.0  # of each way


@pytest.mark.parametrize('seed', range(3))
def test_a_held_cylinder_stays_where_the_fingers_have_it_while_the_arm_swings(seed):
    with Tabletop(CYLINDER, seed) as table:
        (thing,) = table.objects()
        x, y, _ = thing.position
        above, at = (x, y, 0.16), (x, y, 0.05)
        far = (0.42, -0.2 if y > 0 else 0.2, 0.16)
        move(table, above, OPEN)
        move(table, at, OPEN)
        move(table, at, CLOSED)
        move(table, above, CLOSED)
        assert table.held() == thing.name
        places = move(table, far, CLOSED)
        assert table.held() == thing.name
    assert np.ptp(places, axis=0).max() < 0.003


def move(table, point, fingers):
    """Move the gripper to a point (m), and return the places of the thing in the hand [n, 3]."""
    start, places = table.state().astype(float), []
    target = np.append(kinematics.top_down([point])[0], fingers)
    for share in np.linspace(0, 1, 101)[1:]:
        table.command(start + (target - start) * share)
        table.step(SECONDS / 100)
        places.append(place(table))
    table.step(0.3)
    return np.array(places)


def place(table):
    """Return where the thing is between the fingers, in the frame of the hand [3] (m)."""
    site = table._data.site('grip')
    (thing,) = table.objects()
    return site.xmat.reshape(3, 3).T @ (thing.position - site.xpos)
