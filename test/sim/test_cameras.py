"""Images show the scene, and `project` returns the pixel of a point."""

import numpy as np
import pytest

from embodied_kv.demo.sim import kinematics, tabletop
from embodied_kv.demo.sim.tabletop import SceneConfig, Tabletop


@pytest.fixture(scope='module')
def table():
    with Tabletop() as table:
        yield table


def pixels_of(image: np.ndarray, rgb: tuple[float, ...]) -> np.ndarray:
    """Return (column, row) [N, 2] of the pixels of that hue, whatever the light."""
    colours = image / np.maximum(np.linalg.norm(image.astype(float), axis=-1, keepdims=True), 1)
    bright = np.linalg.norm(image.astype(float), axis=-1) > 40
    rows, columns = np.nonzero(bright & (colours @ (np.array(rgb) / np.linalg.norm(rgb)) > 0.99))
    return np.stack([columns, rows], -1)


def test_each_camera_gives_a_square_uint8_image(table):
    images = table.render()
    assert list(images) == ['front', 'wrist']
    for image in images.values():
        assert image.shape == (64, 64, 3) and image.dtype == np.uint8 and image.flags.c_contiguous
        assert image.std() > 10
    with Tabletop(SceneConfig(image_size=96)) as other:
        assert other.render()['wrist'].shape == (96, 96, 3)


def test_front_camera_sees_every_object(table):
    for seed in range(10):
        table.reset(seed)
        front = table.render()['front']
        for thing in table.scene.things:
            assert len(pixels_of(front, thing.rgb)) >= 4, (seed, thing.name)


def test_wrist_camera_sees_the_object_under_the_gripper(table):
    for seed in range(5):
        table.reset(seed)
        thing, truth = table.scene.things[-1], table.objects()[-1]
        arm = kinematics.top_down([truth.position + (0, 0, 0.08)])[0]
        table.command(np.append(arm, 0.04))
        table.step(1.0)
        assert len(pixels_of(table.render()['wrist'], thing.rgb)) >= 30


@pytest.mark.parametrize('camera', ['front', 'wrist'])
def test_projected_centre_is_near_the_centroid_of_the_pixels(camera):
    config = SceneConfig(objects=(1, 1), receptacles=(0, 0), shapes=('ball',), image_size=256)
    with Tabletop(config) as table:
        for seed in range(5):
            table.reset(seed)
            truth = table.objects()[0]
            arm = kinematics.top_down([truth.position + (-0.03, 0, 0.10)])[0]
            table.command(np.append(arm, 0.04))
            table.step(1.0)
            seen = pixels_of(table.render()[camera], table.scene.things[0].rgb)
            error = seen.mean(0) - table.project(truth.position, camera)[0]
            assert len(seen) > 150 and np.abs(error).max() < (0.5 if camera == 'front' else 2.0)


def test_project_is_the_pinhole_and_a_point_behind_the_camera_is_nan(table):
    table.reset(0)
    target = np.array(table.scene.target)
    behind = np.array(table.scene.eye) * 2 - target
    pixels = table.project(np.stack([target, behind]), 'front')
    assert np.allclose(pixels[0], 31.5) and np.isnan(pixels[1]).all()
    with pytest.raises(KeyError):
        table.project(target, 'nowhere')


def test_a_point_is_seen_where_any_camera_has_it_in_its_picture(table):
    table.reset(0)
    under = table.gripper_position() - (0, 0, 0.02)
    middle = table.scene.target
    behind = np.array(table.scene.eye) * 2 - middle
    beside = (0.4, 0.45, 0.02)
    assert table.sees([middle, under, behind, beside]).tolist() == [True, True, False, False]
    table.command(np.append(kinematics.top_down([(0.37, 0.43, 0.12)])[0], 0.04))
    table.step(2.0)
    assert np.isfinite(table.project(beside, 'front')).all()
    assert table.sees(beside).tolist() == [True]  # only in the wrist image


def test_two_tables_draw_their_own_scenes(table):
    table.reset(0)
    before = table.render()['front']
    with Tabletop(seed=1) as other:
        assert not np.array_equal(other.render()['front'], before)
        assert np.array_equal(table.render()['front'], before)
    assert np.array_equal(table.render()['front'], before)


def test_without_opengl_the_remedy_is_named(monkeypatch):
    monkeypatch.delenv('MUJOCO_GL', raising=False)
    monkeypatch.setattr(tabletop.ctypes.util, 'find_library', lambda name: None)
    with pytest.raises(RuntimeError, match='apt-get install'):
        Tabletop()


def test_second_close_has_no_effect():
    table = Tabletop()
    table.close()
    table.close()
