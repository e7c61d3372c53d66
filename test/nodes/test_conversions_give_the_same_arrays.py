"""Messages and values: pixels of every encoding, and round trips."""

import importlib.util
import time

import numpy as np
import pytest
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import Image

from embodied_kv.kv.handle import KvHandle
from embodied_kv.msg import TextDelta as TextDeltaMsg
from embodied_kv.nodes.common import conversions, images
from embodied_kv.types import TextDelta

HAS_BRIDGE = importlib.util.find_spec('cv_bridge') is not None
HEIGHT, WIDTH, PADDING = 3, 5, 7
# What each channel of an encoding is; g stands for grey, A for alpha.
LETTERS = {'rgb8': 'RGB', 'bgr8': 'BGR', 'mono8': 'g', 'rgba8': 'RGBA', 'bgra8': 'BGRA'}


def picture(encoding, padding=0):
    """A message, and the RGB that it shows."""
    rgb = np.random.default_rng(1).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    planes = dict(zip('RGB', rgb.transpose(2, 0, 1), strict=True))
    if encoding == 'mono8':
        planes = dict.fromkeys('RGBg', planes['R'])
        rgb = np.stack([planes['g']] * 3, -1)
    planes['A'] = np.full((HEIGHT, WIDTH), 9, np.uint8)
    pixels = np.stack([planes[letter] for letter in LETTERS[encoding]], -1)
    rows = pixels.reshape(HEIGHT, -1)
    rows = np.hstack([rows, np.full((HEIGHT, padding), 77, np.uint8)])
    message = Image(height=HEIGHT, width=WIDTH, encoding=encoding, step=rows.shape[1])
    message.data = rows.tobytes()
    return message, rgb


@pytest.mark.parametrize('padding', [0, PADDING])
@pytest.mark.parametrize('encoding', LETTERS)
def test_the_adapter_gives_the_pixels_as_rgb(encoding, padding):
    message, rgb = picture(encoding, padding)
    got = images.from_raw(message)
    assert got.dtype == np.uint8 and got.flags.c_contiguous
    np.testing.assert_array_equal(got, rgb)


@pytest.mark.skipif(not HAS_BRIDGE, reason='cv_bridge is not installed: not among the ROS wheels')
@pytest.mark.parametrize('padding', [0, PADDING])
@pytest.mark.parametrize('encoding', LETTERS)
def test_cv_bridge_gives_what_the_adapter_gives(encoding, padding):
    message, _ = picture(encoding, padding)
    np.testing.assert_array_equal(images.rgb(message), images.from_raw(message))


def test_every_encoding_that_is_named_is_tested():
    assert images.CHANNELS == {name: len(letters) for name, letters in LETTERS.items()}


@pytest.mark.parametrize(
    'fields, reason',
    [
        ({'encoding': '16UC1'}, "'16UC1' is not a colour image: publish one of rgb8, bgr8"),
        ({'encoding': 'yuv422'}, "'yuv422' is not"),
        ({'encoding': ''}, "'' is not"),
        ({'width': 0}, '0 x 3 pixels'),
        ({'height': 0}, '5 x 0 pixels'),
        ({'step': 14}, 'step 14 is too short for 5 pixels of rgb8: 15 bytes'),
        ({'height': 4}, '45 bytes of data are not 4 rows of 15 bytes'),
        ({'height': 2}, '45 bytes of data are not 2 rows'),
    ],
)
def test_an_image_that_cannot_be_read_says_why(fields, reason):
    message, _ = picture('rgb8')
    for name, value in fields.items():
        setattr(message, name, value)
    with pytest.raises(conversions.Refused, match='.') as refused:
        images.rgb(message)
    assert reason in str(refused.value)


def test_a_handle_survives_its_message():
    handle = KvHandle(
        process_id='00ff' * 8,
        row=3,
        generation=41,
        sequence=2**40,
        length=96,
        layout='0123456789abcdef',
        stamp=1_700_000_000_123_456_789,
        deadline=time.monotonic(),
        prefill_ms=12.5,
        robot='/left',
    )
    assert conversions.handle(conversions.handle_message(handle), '/left') == handle


@pytest.mark.parametrize('moment', [0, 1, 999_999_999, 1_700_000_000_000_000_001])
def test_a_stamp_survives_its_message(moment):
    assert conversions.nanoseconds(conversions.stamp(moment)) == moment


def test_text_after_a_zero_is_not_lost():
    """A string of ROS ends at the first zero."""
    delta = TextDelta(stream=1, sequence=2, stamp=3, query='what?', text='a\0b', tokens=3)
    message = deserialize_message(serialize_message(conversions.text_message(delta)), TextDeltaMsg)
    assert message.text == 'a\N{REPLACEMENT CHARACTER}b'
