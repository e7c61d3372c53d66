"""Raw images of every supported encoding give the encoded colours."""

from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_kv.data.pictures import ENCODINGS, from_raw

SIZES = st.integers(1, 12)
COLOURS = st.tuples(*[st.integers(0, 255)] * 3)
BAYER = [name for name in ENCODINGS if name.startswith('bayer')]
ORDERS = {'yuv422': 'UYVY', 'uyvy': 'UYVY', 'yuv422_yuy2': 'YUYV', 'yuyv': 'YUYV'}
PLANES = {'rgb8': 'RGB', 'bgr8': 'BGR', '8UC3': 'BGR', 'rgba8': 'RGBA', 'bgra8': 'BGRA'}
GREYS = {'mono8', 'mono16'}


def message(values, encoding, padding=0, big=False):
    """Return an image message of values [height, width, channels]; rows may be padded."""
    height, width = values.shape[:2]
    if values.dtype == np.uint16:
        values = values.astype('>u2' if big else '<u2')
    rows = np.ascontiguousarray(values).reshape(height, -1).view(np.uint8)
    rows = np.hstack([rows, np.full((height, padding), 77, np.uint8)])
    return SimpleNamespace(
        height=height,
        width=width,
        encoding=encoding,
        step=rows.shape[1],
        is_bigendian=int(big),
        data=rows.tobytes(),
    )


def noise(height, width, seed):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def mosaic(rgb, pattern):
    """Return the one value per pixel that a sensor with this pattern measures."""
    channels = np.array(['rgb'.index(letter) for letter in pattern]).reshape(2, 2)
    height, width = rgb.shape[:2]
    index = np.tile(channels, (height, width))[:height, :width]
    return np.take_along_axis(rgb, index[..., None], -1)


def test_every_encoding_is_tested():
    assert set(ENCODINGS) == {*PLANES, *ORDERS, *GREYS, *BAYER} and len(BAYER) == 8


@pytest.mark.parametrize('encoding', PLANES)
@given(SIZES, SIZES, st.integers(0, 9), st.integers(0, 99))
def test_interleaved_channels_are_read_exactly(encoding, height, width, padding, seed):
    rgb = noise(height, width, seed)
    planes = dict(zip('RGB', np.moveaxis(rgb, -1, 0), strict=True)) | {'A': rgb[..., 0]}
    values = np.stack([planes[letter] for letter in PLANES[encoding]], -1)
    got = from_raw(message(values, encoding, padding))
    assert got.dtype == np.uint8 and got.flags.c_contiguous
    np.testing.assert_array_equal(got, rgb)


@given(SIZES, SIZES, st.integers(0, 9), st.booleans(), st.integers(0, 99))
def test_grey_of_16_bits_is_scaled_from_its_whole_range(height, width, padding, big, seed):
    grey = np.random.default_rng(seed).integers(0, 65536, (height, width, 1), np.uint16)
    got = from_raw(message(grey, 'mono16', padding, big))
    assert np.abs(got - grey / 257).max() <= 0.5  # 65535 becomes 255, rounded to the nearest
    assert (got == got[..., :1]).all()


@pytest.mark.parametrize('order', ['UYVY', 'YUYV'])
@given(SIZES, SIZES, st.integers(0, 9), COLOURS)
def test_yuv_gives_the_colour_within_rounding(order, height, pairs, padding, colour):
    """Y, U and V are those of BT.601 with limited range, as cameras give them, each rounded."""
    r, g, b = colour
    y = 16 + (65.481 * r + 128.553 * g + 24.966 * b) / 255
    u = 128 + (-37.797 * r - 74.203 * g + 112.0 * b) / 255
    v = 128 + (112.0 * r - 93.786 * g - 18.214 * b) / 255
    parts = {'Y': iter([y, y]), 'U': iter([u]), 'V': iter([v])}
    pair = [round(next(parts[letter])) for letter in order]
    values = np.tile(np.array(pair, np.uint8).reshape(1, 2, 2), (height, pairs, 1))
    for encoding in (name for name, o in ORDERS.items() if o == order):
        got = from_raw(message(values, encoding, padding))
        assert np.abs(got.astype(int) - colour).max() <= 4


@pytest.mark.parametrize('encoding', BAYER)
@settings(max_examples=30)
@given(st.integers(4, 12), st.integers(4, 12), st.integers(0, 9), st.booleans(), COLOURS)
def test_bayer_gives_the_colour_that_the_sensor_saw(encoding, height, width, padding, big, colour):
    rgb = np.full((height, width, 3), colour, np.uint8)
    values = mosaic(rgb, encoding[6:10])
    if encoding.endswith('16'):
        values = values.astype(np.uint16) * 257
    got = from_raw(message(values, encoding, padding, big))
    np.testing.assert_array_equal(got, rgb)


@pytest.mark.parametrize(
    'encoding, changes, said',
    [
        ('16UC1', {}, "encoding '16UC1' is not a colour image; publish one of rgb8"),
        ('yuv422', dict(width=3), r'width must be even for yuv422.*\(got 3\)'),
        ('bayer_rggb16', dict(step=7), 'step must be >= 8 bytes for 4 pixels of bayer_rggb16'),
        ('mono8', dict(data=b''), r'data must have 4 rows of 4 bytes \(got 0 bytes\)'),
        ('rgb8', dict(height=0), r'must be > 0 \(got 4 x 0 pixels\)'),
    ],
)
def test_message_that_contradicts_itself_is_refused(encoding, changes, said):
    values = np.zeros((4, 4, 1), np.uint8)
    odd = message(values, encoding)
    for name, value in changes.items():
        setattr(odd, name, value)
    with pytest.raises(ValueError, match=said):
        from_raw(odd)


@pytest.mark.skipif(
    not hasattr(cv2, 'COLOR_RGB2YUV_UYVY'), reason='this OpenCV does not encode YUV 4:2:2'
)
@given(SIZES, SIZES, st.integers(0, 99))
def test_yuv_that_opencv_encodes_is_read_back(height, pairs, seed):
    rgb = np.repeat(noise(height, pairs, seed), 2, axis=1)  # 4:2:2 shares a colour between two
    for encoding, code in (('uyvy', cv2.COLOR_RGB2YUV_UYVY), ('yuyv', cv2.COLOR_RGB2YUV_YUY2)):
        got = from_raw(message(cv2.cvtColor(rgb, code), encoding))
        assert np.abs(got.astype(int) - rgb).max() <= 5
