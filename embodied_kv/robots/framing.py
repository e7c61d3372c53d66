"""What the policy sees of a camera's picture: a part of it, upright."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def framed(
    pixels: NDArray[np.uint8], crop: tuple[int, int, int, int] | None, rotate: int
) -> NDArray[np.uint8]:
    """[height, width, 3] -> the part that is seen, turned clockwise; no copy.

    crop: (left, top, width, height) in pixels, None for all. rotate: 0, 90, 180 or 270 degrees,
    after cropping. Raises ValueError where the crop does not lie in the picture.
    """
    if crop is not None:
        left, top, width, height = crop
        if top + height > pixels.shape[0] or left + width > pixels.shape[1]:
            raise ValueError(
                f'crop {list(crop)} does not lie in an image of {pixels.shape[1]} x '
                f'{pixels.shape[0]} pixels'
            )
        pixels = pixels[top : top + height, left : left + width]
    return np.rot90(pixels, -rotate // 90)
