"""A scene summary survives a capsule unchanged; its thumbnails are means of blocks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.capsule.reentry import SIDE, Depth, Limits, SceneSummary, choose_depth, thumbnail


@given(st.integers(SIDE, 70), st.integers(SIDE, 70), st.sampled_from([(), (3,)]))
def test_each_pixel_of_a_thumbnail_is_the_mean_of_its_block(height, width, channels):
    image = np.random.default_rng(height).integers(0, 256, (height, width, *channels), np.uint8)
    small = thumbnail(image)
    assert small.shape == (SIDE, SIDE, *channels) and small.dtype == np.uint8
    for row, column in ((0, 0), (3, SIDE - 1), (SIDE - 1, 7)):
        block = image[
            row * height // SIDE : (row + 1) * height // SIDE,
            column * width // SIDE : (column + 1) * width // SIDE,
        ]
        assert np.abs(small[row, column] - block.mean(axis=(0, 1))).max() <= 0.5


def test_an_image_too_small_for_blocks_is_refused():
    with pytest.raises(ValueError, match='an image of 64 x 8 pixels has no 16 x 16 blocks'):
        thumbnail(np.zeros((8, 64), np.uint8))


def test_noise_leaves_a_scene_unchanged_and_a_thing_that_moved_does_not():
    random = np.random.default_rng(0)
    scene = np.full((64, 64, 3), 120.0)
    scene[20:26, 20:26] = (200, 40, 40)
    moved = np.roll(scene, 6, axis=1)

    def summary(scene):
        noisy = np.clip(scene + random.normal(0, 8, scene.shape), 0, 255).astype(np.uint8)
        return SceneSummary(np.zeros(7), {'front': thumbnail(noisy)}, 0)

    assert choose_depth(summary(scene), summary(scene), Limits()).depth is Depth.ACTOR
    assert choose_depth(summary(scene), summary(moved), Limits()).depth is Depth.PLANNER


def test_scene_read_from_its_arrays_and_facts_is_equal():
    images = {'front': np.arange(768, dtype=np.uint8).reshape(16, 16, 3), 'a/b': np.eye(2) > 0}
    summary = SceneSummary(np.array([0.1, -2.0]), images, 1_700_000_000_123_456_789, 'arm')
    again = SceneSummary.of(summary.arrays(), summary.facts())
    assert (again.stamp, again.robot) == (summary.stamp, 'arm')
    assert np.array_equal(again.joints, summary.joints)
    assert again.images.keys() == images.keys()
    assert all(again.images[view] is images[view] for view in images)
