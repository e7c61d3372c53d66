"""Convert camera messages to pixels, and to the image files of a data set.

This module does not import ROS: it accepts any object with the fields of a message.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from embodied_kv.robots.sources import View
from embodied_kv.text import shown

MODES = {1: 'L', 3: 'RGB'}  # of Pillow, by the number of channels
GREY = '1', 'L'  # modes of Pillow
# Errors of Pillow for data that is not an image, or for an image that is too large.
DAMAGE = (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError)


@dataclass(frozen=True)
class Encoding:
    """Memory layout of a raw image, and the conversion of OpenCV that makes it RGB.

    depth: bytes of a value, 1 or 2. channels: values of a pixel. code: None for RGB.
    """

    channels: int
    code: int | None
    depth: int = 1

    @property
    def pixel(self) -> int:
        """Return the bytes of a pixel."""
        return self.channels * self.depth


_BAYER = {
    'rggb': cv2.COLOR_BayerRGGB2RGB,
    'bggr': cv2.COLOR_BayerBGGR2RGB,
    'gbrg': cv2.COLOR_BayerGBRG2RGB,
    'grbg': cv2.COLOR_BayerGRBG2RGB,
}
# Names of sensor_msgs/image_encodings. Values of 16 bits are scaled from the whole range, 65535 to
# 255, as cv_bridge does: a camera that fills the lower 12 bits only gives a dark image.
ENCODINGS = {
    'rgb8': Encoding(3, None),
    'bgr8': Encoding(3, cv2.COLOR_BGR2RGB),
    'mono8': Encoding(1, cv2.COLOR_GRAY2RGB),
    'mono16': Encoding(1, cv2.COLOR_GRAY2RGB, depth=2),
    'rgba8': Encoding(4, cv2.COLOR_RGBA2RGB),
    'bgra8': Encoding(4, cv2.COLOR_BGRA2RGB),
    '8UC3': Encoding(3, cv2.COLOR_BGR2RGB),  # cv2_to_imgmsg's default; images of OpenCV are BGR
    'yuv422': Encoding(2, cv2.COLOR_YUV2RGB_UYVY),
    'uyvy': Encoding(2, cv2.COLOR_YUV2RGB_UYVY),
    'yuv422_yuy2': Encoding(2, cv2.COLOR_YUV2RGB_YUY2),
    'yuyv': Encoding(2, cv2.COLOR_YUV2RGB_YUY2),
}
GREY_ENCODINGS = 'mono8', 'mono16'
for _pattern, _code in _BAYER.items():
    ENCODINGS[f'bayer_{_pattern}8'] = Encoding(1, _code)
    ENCODINGS[f'bayer_{_pattern}16'] = Encoding(1, _code, depth=2)


def check_raw(message: Any) -> None:
    """Check that the fields of a sensor_msgs/Image describe its data. Raises ValueError."""
    encoding = ENCODINGS.get(message.encoding)
    if encoding is None:
        raise ValueError(
            f"encoding '{shown(message.encoding)}' is not a colour image; publish one of "
            f'{", ".join(ENCODINGS)}'
        )
    height, width, step = message.height, message.width, message.step
    if not height or not width:
        raise ValueError(f'width and height must be > 0 (got {width} x {height} pixels)')
    if encoding.channels == 2 and width % 2:
        raise ValueError(
            f'width must be even for {message.encoding}, whose pixels come in pairs (got {width})'
        )
    if step < width * encoding.pixel:
        raise ValueError(
            f'step must be >= {width * encoding.pixel} bytes for {width} pixels of '
            f'{message.encoding} (got {step})'
        )
    if len(message.data) != step * height:
        raise ValueError(
            f'data must have {height} rows of {step} bytes (got {len(message.data)} bytes)'
        )


def from_raw(message: Any) -> NDArray[np.uint8]:
    """Return a sensor_msgs/Image as RGB, uint8 [height, width, 3].

    Rows may be padded. Raises ValueError as `check_raw` does.
    """
    check_raw(message)
    encoding = ENCODINGS[message.encoding]
    rows = np.frombuffer(message.data, np.uint8).reshape(message.height, message.step)
    values = np.ascontiguousarray(rows[:, : message.width * encoding.pixel])
    if encoding.depth == 2:
        wide = values.view('>u2' if message.is_bigendian else '<u2').astype(np.uint32)
        values = ((wide * 255 + 32767) // 65535).astype(np.uint8)
    pixels = values.reshape(message.height, message.width, encoding.channels)
    if encoding.code is None:
        return pixels
    return cv2.cvtColor(pixels, encoding.code)  # type: ignore[return-value]  # stub: any dtype


def decoded(data: bytes, channels: int = 3) -> NDArray[np.uint8]:
    """Return a JPEG or PNG as uint8 [height, width, channels]. Raises ValueError.

    channels: 3 for RGB, 1 for grey.
    """
    try:
        with Image.open(io.BytesIO(data)) as picture:
            pixels = np.asarray(picture.convert(MODES[channels]))
            return pixels.reshape(*pixels.shape[:2], channels)
    except DAMAGE as error:
        raise _damaged(data, error) from error


def shape(data: bytes) -> tuple[int, int, int]:
    """Return (height, width, channels) of a JPEG or PNG without decoding it. Raises ValueError.

    channels: 1 for a grey image, else 3.
    """
    try:
        with Image.open(io.BytesIO(data)) as picture:
            return picture.height, picture.width, 1 if picture.mode in GREY else 3
    except DAMAGE as error:
        raise _damaged(data, error) from error


def _damaged(data: bytes, error: Exception) -> ValueError:
    """Return the error to raise, without the Python object in Pillow's message."""
    why = '' if isinstance(error, UnidentifiedImageError) else f': {error}'
    return ValueError(f'data must be a JPEG or PNG image (got {len(data)} bytes{why})')


def check(message: Any, view: View) -> None:
    """Check that `as_seen` gives an image that can be decoded. Raises ValueError."""
    if _is_kept(message, view):
        decoded(bytes(message.data))
    else:
        _framed(message, view)


def as_seen(message: Any, view: View) -> bytes:
    """Return the policy's view of a message, as the bytes of an image file.

    The data of a compressed RGB or grey image is kept, unchecked, if the view has neither crop nor
    rotation. All other images become PNG. Grey images have one channel, others three (RGB). Raises
    ValueError for an image that cannot be decoded.
    """
    if _is_kept(message, view):
        return bytes(message.data)
    pixels, stream = _framed(message, view), io.BytesIO()
    if _is_grey(message):
        pixels = pixels[..., 0]
    Image.fromarray(pixels).save(stream, 'PNG', compress_level=1)
    return stream.getvalue()


def _is_kept(message: Any, view: View) -> bool:
    """Return whether the view is the message's own image file, RGB or grey."""
    if hasattr(message, 'encoding') or view.crop is not None or view.rotate:
        return False
    try:
        with Image.open(io.BytesIO(bytes(message.data))) as picture:
            return picture.mode in MODES.values()
    except DAMAGE:
        return False  # `decoded` raises the error


def _is_grey(message: Any) -> bool:
    if hasattr(message, 'encoding'):
        return message.encoding in GREY_ENCODINGS
    return shape(bytes(message.data))[2] == 1


def _framed(message: Any, view: View) -> NDArray[np.uint8]:
    """Return the pixels of a view, RGB, uint8 [height, width, 3]."""
    is_raw = hasattr(message, 'encoding')
    pixels = from_raw(message) if is_raw else decoded(bytes(message.data))
    return np.ascontiguousarray(view.framed(pixels))
