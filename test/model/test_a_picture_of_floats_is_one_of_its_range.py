"""A resized image is used unchanged; an image with floats out of range is refused."""

import numpy as np
import pytest

from embodied_kv.model.processing.images import BILINEAR, BILINEAR_BEFORE_0_5, OWN_RESIZE, PILLOW

SIZE = 8


@pytest.fixture
def camera():
    return np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)


@pytest.mark.parametrize('resize', [BILINEAR, BILINEAR_BEFORE_0_5, PILLOW, OWN_RESIZE])
def test_resized_image_is_unchanged(resize, camera):
    once = resize.pad(camera, SIZE)
    assert resize.is_padded(once, SIZE) and resize.pad(once, SIZE) is once


@pytest.mark.parametrize('resize', [BILINEAR, BILINEAR_BEFORE_0_5])
@pytest.mark.parametrize('wrong', [200.0, -1.5, np.nan, np.inf])
def test_numbers_of_another_range_are_refused(resize, wrong):
    picture = np.full((SIZE, SIZE, 3), 0.5, np.float32)
    picture[3, 2, 1] = wrong
    assert not resize.is_padded(picture, SIZE)
    with pytest.raises(ValueError, match='expected uint8'):
        resize.pad(picture, SIZE)
