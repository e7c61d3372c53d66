"""Convert image messages, raw or compressed, to pixels.

A compressed image is checked on arrival, by its first and last bytes, and decoded only when its
pixels are needed.
"""

from __future__ import annotations

from typing import cast

import cv2
import numpy as np
from numpy.typing import NDArray
from sensor_msgs.msg import CompressedImage, Image

from embodied_kv.data.pictures import check_raw, from_raw
from embodied_kv.text import shown

try:
    from cv_bridge import CvBridge
except ImportError:  # only a full ROS has it; `from_raw` gives the same arrays
    BRIDGE = None
else:
    BRIDGE = CvBridge()
BRIDGED = ('rgb8', 'bgr8', 'mono8', 'rgba8', 'bgra8')  # encodings that cv_bridge converts to rgb8

# First bytes of each format, and bytes near its end that a truncated image lacks.
FORMATS = {
    'JPEG': (b'\xff\xd8\xff', b'\xff\xd9'),
    'PNG': (b'\x89PNG\r\n\x1a\n', b'IEND\xaeB`\x82'),
}
TAIL = 64  # number of bytes before the padding that are searched for the end
DECODED = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION


def check(message: Image | CompressedImage) -> None:
    """Check sizes, encoding and ends of an image, without decoding it. Raises ValueError."""
    if isinstance(message, CompressedImage):
        _check_compressed(message)
    else:
        check_raw(message)


def rgb(message: Image | CompressedImage) -> NDArray[np.uint8]:
    """Return RGB pixels, uint8 [height, width, 3]. Raises ValueError."""
    check(message)
    if isinstance(message, CompressedImage):
        return _decoded(message)
    if BRIDGE is not None and message.encoding in BRIDGED:
        return BRIDGE.imgmsg_to_cv2(message, 'rgb8')
    return from_raw(message)


def _check_compressed(message: CompressedImage) -> None:
    """Check the first and last bytes. Drivers may pad an image with zeros to a fixed size."""
    data = message.data.tobytes()
    for name, (start, end) in FORMATS.items():
        if data.startswith(start):
            if end not in data.rstrip(b'\0')[-TAIL:]:
                raise ValueError(
                    f'{name} must be complete (got {len(data)} bytes without its end); the image '
                    'was truncated'
                )
            return
    raise ValueError(
        f'compressed data must be {" or ".join(FORMATS)} (got {len(data)} bytes of format '
        f"'{shown(message.format)}')"
    )


def _decoded(message: CompressedImage) -> NDArray[np.uint8]:
    try:
        pixels = cv2.imdecode(np.frombuffer(message.data, np.uint8), DECODED)
    except cv2.error as error:  # for example larger than OpenCV accepts
        raise ValueError(f'{len(message.data)} bytes cannot be decoded ({error})') from error
    if pixels is None:
        raise ValueError(f'{len(message.data)} bytes cannot be decoded; the data is damaged')
    return cast('NDArray[np.uint8]', cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB))
