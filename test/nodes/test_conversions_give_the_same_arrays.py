"""Values are converted to messages and back without loss; image messages give their pixels."""

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
HEIGHT, WIDTH = 3, 5


def picture():
    """Return an image message and the RGB pixels that it contains."""
    rgb = np.random.default_rng(1).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    message = Image(height=HEIGHT, width=WIDTH, encoding='rgb8', step=3 * WIDTH)
    message.data = rgb.tobytes()
    return message, rgb


def test_image_message_gives_its_pixels():
    message, rgb = picture()
    np.testing.assert_array_equal(images.rgb(message), rgb)


@pytest.mark.skipif(not HAS_BRIDGE, reason='cv_bridge is not installed: not among the ROS wheels')
@pytest.mark.parametrize('encoding', images.BRIDGED)
def test_cv_bridge_gives_what_opencv_gives(encoding):
    channels = {'mono8': 1, 'rgba8': 4, 'bgra8': 4}.get(encoding, 3)
    data = np.random.default_rng(1).integers(0, 256, HEIGHT * WIDTH * channels, np.uint8)
    message = Image(height=HEIGHT, width=WIDTH, encoding=encoding, step=WIDTH * channels)
    message.data = data.tobytes()
    np.testing.assert_array_equal(images.rgb(message), images.from_raw(message))


@pytest.mark.parametrize(
    'fields, reason',
    [
        ({'encoding': '16UC1'}, "'16UC1' is not a colour image; publish one of rgb8, bgr8"),
        ({'encoding': 'yuv422'}, 'width must be even for yuv422'),
        ({'encoding': ''}, "'' is not"),
        ({'width': 0}, '(got 0 x 3 pixels)'),
        ({'height': 0}, '(got 5 x 0 pixels)'),
        ({'step': 14}, 'step must be >= 15 bytes for 5 pixels of rgb8 (got 14)'),
        ({'height': 4}, 'data must have 4 rows of 15 bytes (got 45 bytes)'),
        ({'height': 2}, 'data must have 2 rows'),
    ],
)
def test_image_that_cannot_be_read_is_refused_with_the_reason(fields, reason):
    message, _ = picture()
    for name, value in fields.items():
        setattr(message, name, value)
    with pytest.raises(ValueError, match='.') as refused:
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
    """A ROS string ends at the first zero byte."""
    delta = TextDelta(stream=1, sequence=2, stamp=3, query='what?', text='a\0b', tokens=3)
    message = deserialize_message(serialize_message(conversions.text_message(delta)), TextDeltaMsg)
    assert message.text == 'a\N{REPLACEMENT CHARACTER}b'
