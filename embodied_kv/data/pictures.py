"""Pictures of a camera's messages: pixels, and the bytes that a data set keeps of them.

Knows encodings. Does not know ROS, whoever made the object that has a message's fields.
"""

from __future__ import annotations

import io
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from embodied_kv.robots.framing import framed
from embodied_kv.robots.sources import View
from embodied_kv.text import shown

# What Pillow raises of bytes that are no picture, or of one too large to be one.
DAMAGE = (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError)
CHANNELS = {'rgb8': 3, 'bgr8': 3, 'mono8': 1, 'rgba8': 4, 'bgra8': 4}
TO_RGB = {
    'bgr8': cv2.COLOR_BGR2RGB,
    'mono8': cv2.COLOR_GRAY2RGB,
    'rgba8': cv2.COLOR_RGBA2RGB,
    'bgra8': cv2.COLOR_BGRA2RGB,
}


def from_raw(message: Any) -> NDArray[np.uint8]:
    """[height, width, 3] RGB of a sensor_msgs/Image, as cv_bridge does for CHANNELS.

    Rows may be padded; bytes have no order. Raises ValueError.
    """
    channels = CHANNELS.get(message.encoding)
    if channels is None:
        raise ValueError(
            f"encoding '{shown(message.encoding)}' is not one of {', '.join(CHANNELS)}"
        )
    rows = np.frombuffer(message.data, np.uint8).reshape(message.height, message.step)
    shape = (message.height, message.width, channels)
    pixels = np.ascontiguousarray(rows[:, : message.width * channels].reshape(shape))
    code = TO_RGB.get(message.encoding)
    return pixels if code is None else cv2.cvtColor(pixels, code)


def decoded(data: bytes) -> NDArray[np.uint8]:
    """[height, width, 3] RGB of a picture's bytes. Raises ValueError."""
    try:
        with Image.open(io.BytesIO(data)) as picture:
            return np.asarray(picture.convert('RGB'))
    except DAMAGE as error:
        raise _damaged(data, error) from error


def size(data: bytes) -> tuple[int, int]:
    """(height, width) of a picture, by its first bytes. Raises ValueError."""
    try:
        with Image.open(io.BytesIO(data)) as picture:
            return picture.height, picture.width
    except DAMAGE as error:
        raise _damaged(data, error) from error


def _damaged(data: bytes, error: Exception) -> ValueError:
    """Pillow names an object of ours where it knows no such format: that helps nobody."""
    why = '' if isinstance(error, UnidentifiedImageError) else f': {error}'
    return ValueError(f'{len(data)} bytes are no picture{why}')


def as_seen(message: Any, view: View) -> bytes:
    """What the policy sees of a message, as the bytes of a picture.

    Those of the message itself where nothing is cut or turned; else, and of raw images, PNG.
    Raises ValueError where it cannot be decoded.
    """
    is_raw = hasattr(message, 'encoding')
    pixels = from_raw(message) if is_raw else decoded(bytes(message.data))
    if not is_raw and view.crop is None and not view.rotate:
        return bytes(message.data)
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(framed(pixels, view.crop, view.rotate))).save(
        stream, 'PNG', compress_level=1
    )
    return stream.getvalue()
