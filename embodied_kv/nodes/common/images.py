"""Images as messages to pixels and back; raw or compressed.

Knows encodings, and the first bytes of JPEG and PNG. Refuses, with a reason for the user, what
are no pixels of colours. What is compressed is looked at on arrival and decoded where somebody
needs the pixels.
"""

from __future__ import annotations

from array import array

import cv2
import numpy as np
from numpy.typing import NDArray
from sensor_msgs.msg import CompressedImage, Image

from embodied_kv.data.pictures import CHANNELS, from_raw
from embodied_kv.nodes.common.conversions import Refused, stamp
from embodied_kv.text import shown

try:
    from cv_bridge import CvBridge
except ImportError:  # only a full ROS has it; `from_raw` gives the same arrays
    BRIDGE = None
else:
    BRIDGE = CvBridge()

# Of each format the first bytes, and those that the last ones hold: what was cut off decodes too.
FORMATS = {
    'JPEG': (b'\xff\xd8\xff', b'\xff\xd9'),
    'PNG': (b'\x89PNG\r\n\x1a\n', b'IEND\xaeB`\x82'),
}
TAIL = 64  # bytes in which the end is looked for: some drivers pad with zeros
DECODED = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION


def check(message: Image | CompressedImage) -> None:
    """Can its pixels be read? Looks at sizes and ends only. Raises Refused."""
    if isinstance(message, CompressedImage):
        _check_compressed(message)
    else:
        _check_raw(message)


def rgb(message: Image | CompressedImage) -> NDArray[np.uint8]:
    """[height, width, 3]. Raises Refused."""
    check(message)
    if isinstance(message, CompressedImage):
        return _decoded(message)
    if BRIDGE is not None:
        return BRIDGE.imgmsg_to_cv2(message, 'rgb8')
    return from_raw(message)


def image_message(pixels: NDArray[np.uint8], nanoseconds: int) -> Image:
    """An rgb8 message of [height, width, 3]. nanoseconds: its stamp."""
    height, width, _ = pixels.shape
    message = Image(height=height, width=width, encoding='rgb8', step=3 * width)
    message.header.stamp = stamp(nanoseconds)
    message.data = array('B', pixels.tobytes())  # the one type that rclpy takes without a look
    return message


def _check_raw(message: Image) -> None:
    if message.encoding not in CHANNELS:
        raise Refused(
            f"encoding '{shown(message.encoding)}' is not a colour image: publish one of "
            f'{", ".join(CHANNELS)}'
        )
    height, width, step = message.height, message.width, message.step
    if not height or not width:
        raise Refused(f'an image of {width} x {height} pixels is empty')
    if step < width * CHANNELS[message.encoding]:
        raise Refused(
            f'step {step} is too short for {width} pixels of {message.encoding}: '
            f'{width * CHANNELS[message.encoding]} bytes'
        )
    if len(message.data) != step * height:
        raise Refused(f'{len(message.data)} bytes of data are not {height} rows of {step} bytes')


def _check_compressed(message: CompressedImage) -> None:
    size, head, tail = len(message.data), message.data[:TAIL], message.data[-TAIL:]
    for name, (start, end) in FORMATS.items():
        if head.tobytes().startswith(start):
            if end not in tail.tobytes():
                raise Refused(f'{size} bytes of {name} have no end: the rest was lost')
            return
    raise Refused(
        f"{size} bytes of format '{shown(message.format)}' are no picture: publish one of "
        f'{", ".join(FORMATS)}'
    )


def _decoded(message: CompressedImage) -> NDArray[np.uint8]:
    try:
        pixels = cv2.imdecode(np.frombuffer(message.data, np.uint8), DECODED)
    except cv2.error as error:  # larger than OpenCV takes
        raise Refused(f'{len(message.data)} bytes cannot be decoded: {error}') from error
    if pixels is None:
        raise Refused(f'{len(message.data)} bytes cannot be decoded: they are damaged')
    return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)
