"""examples/robosuite/panda_lift.py: the cube's pixel in an image; cameras look along -z."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest


@pytest.fixture
def pixels(module, monkeypatch):
    """Return a function from the cube's place (m) to its pixel; 96 x 96 pixels, 90 degrees."""
    for name in ('OPENBLAS_NUM_THREADS', 'MUJOCO_GL', 'LP_NUM_THREADS'):
        monkeypatch.setenv(name, '1')  # restored after the test, as the module sets them
    flags = SimpleNamespace(mjRND_SHADOW=0, mjRND_REFLECTION=1)
    controllers = SimpleNamespace(load_composite_controller_config=None)
    monkeypatch.setitem(sys.modules, 'mujoco', SimpleNamespace(mjtRndFlag=flags))
    monkeypatch.setitem(sys.modules, 'robosuite', SimpleNamespace())
    monkeypatch.setitem(sys.modules, 'robosuite.controllers', controllers)
    code = module('panda_lift')

    def found(*place):
        lift = SimpleNamespace(
            model=SimpleNamespace(camera=lambda name: SimpleNamespace(id=0), cam_fovy=[90.0]),
            data=SimpleNamespace(cam_xmat=np.eye(3).reshape(1, 9), cam_xpos=np.zeros((1, 3))),
            cube_pose=(np.array(place), np.eye(3)),
            _renderer=SimpleNamespace(height=96),
        )
        return code.PandaLift.cube_pixels(lift)['wrist']

    return found


def test_right_is_a_higher_column_and_up_a_lower_row(pixels):
    np.testing.assert_allclose(pixels(0.0, 0.0, -2.0), [48, 48])
    np.testing.assert_allclose(pixels(0.5, 0.25, -1.0), [72, 36])


@pytest.mark.parametrize('ahead', [0.0, 0.5, 2.0])
def test_beside_and_behind_the_lens_there_is_no_place(pixels, ahead):
    assert np.isnan(pixels(0.5, 0.25, ahead)).all()
