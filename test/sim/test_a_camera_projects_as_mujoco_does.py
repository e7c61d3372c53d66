"""The camera projection in closed form, which needs no simulator, equals the simulator's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.demo.sim.camera import axes_towards, project
from embodied_kv.demo.sim.scene import SceneConfig
from embodied_kv.demo.sim.tabletop import Tabletop

SIZE = 64


@pytest.fixture(scope='module')
def table():
    with Tabletop(SceneConfig(image_size=SIZE), 7) as table:
        yield table


@given(
    st.lists(st.tuples(*[st.floats(-0.5, 0.5)] * 2, st.floats(0.0, 0.4)), min_size=1, max_size=5)
)
def test_projection_equals_that_of_the_simulator(table, points):
    scene, points = table.scene, np.array(points)
    axes = axes_towards(scene.eye, scene.target)
    own = project(points, scene.eye, axes, scene.fovy['front'], SIZE)
    np.testing.assert_allclose(own, table.project(points, 'front'), atol=1e-4)


def test_the_target_is_in_the_centre_and_what_is_behind_is_nan():
    eye, target = np.array((1.0, 0.2, 0.8)), np.array((0.3, 0.0, 0.1))
    axes = axes_towards(eye, target)
    np.testing.assert_allclose(axes.T @ axes, np.eye(3), atol=1e-12)
    points = np.stack([target, eye + (eye - target)])
    centre, behind = project(points, eye, axes, 40.0, SIZE)
    np.testing.assert_allclose(centre, (SIZE - 1) / 2, atol=1e-9)
    assert np.isnan(behind).all()
