"""Resizing of camera pictures to the input of the network, by several conventions.

All keep the aspect ratio. They centre the picture on black, with an odd pixel right and below;
SmolVLA's convention has all black left and above. They differ in rounding and antialiasing, which
changes actions by up to a tenth of their range. The contract crops and rotates before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

Fit = Callable[[NDArray[np.uint8], int, int], NDArray]


@dataclass(frozen=True)
class Resize:
    """One convention.

    fit: uint8 [H, W, 3], height, width -> [height, width, 3] of `dtype`. spread: maps float32
    pixels of that range to [-1, 1], in place. black: padding value before `spread`. is_centred:
    otherwise the padding is left and above only.
    """

    name: str
    fit: Fit
    dtype: type[np.generic]
    spread: Callable[[Tensor], Tensor]
    black: float = 0
    is_centred: bool = True

    def is_padded(self, image: NDArray, size: int) -> bool:
        """Return whether the image may be a result of `pad`, by dtype, shape and range."""
        if image.dtype != self.dtype or image.shape != (size, size, 3):
            return False
        return self.dtype is np.uint8 or bool((image >= self.black).all() and (image <= 1).all())

    def pad(self, image: NDArray, size: int) -> NDArray:
        """Return [size, size, 3] of `dtype` of uint8 [H, W, 3], or a padded image unchanged.

        Raises ValueError for any other image.
        """
        if self.is_padded(image, size):
            return image
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
            raise ValueError(
                f'image is {image.dtype} {list(image.shape)}, expected uint8 [H, W, 3]'
            )
        ratio = max(image.shape[:2]) / size
        height, width = (max(1, int(side / ratio)) for side in image.shape[:2])
        canvas = np.full((size, size, 3), self.black, self.dtype)
        top, left = size - height, size - width
        if self.is_centred:
            top, left = top // 2, left // 2
        canvas[top : top + height, left : left + width] = self.fit(image, height, width)
        return canvas

    def resized(self, images: Sequence[NDArray | None], size: int) -> NDArray:
        """Return the present views in order: [present, size, size, 3] of `dtype`."""
        present = [self.pad(image, size) for image in images if image is not None]
        return np.stack(present) if present else np.empty((0, size, size, 3), self.dtype)

    def normalised(self, pixels: Tensor) -> Tensor:
        """Return float32 [n, 3, size, size] in [-1, 1] of such pixels, on any device."""
        pixels = pixels.permute(0, 3, 1, 2)
        return self.spread(
            pixels.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
        )

    def to_model(self, images: Sequence[NDArray[np.uint8] | None], size: int) -> Tensor:
        """Return the present views in order: float32 [present, 3, size, size] in [-1, 1]."""
        return self.normalised(torch.from_numpy(self.resized(images, size)))


def _interpolated(image: NDArray, height: int, width: int) -> NDArray:
    """Resize bilinearly without antialiasing, in the dtype of the image."""
    if image.shape[:2] == (height, width):
        return image
    pixels = torch.from_numpy(np.require(image, requirements=('C', 'W'))).permute(2, 0, 1)[None]
    resized = interpolate(pixels, size=(height, width), mode='bilinear', align_corners=False)[0]
    return resized.permute(1, 2, 0).numpy()


def _in_floats(image: NDArray[np.uint8], height: int, width: int) -> NDArray[np.float32]:
    """Resize as LeRobot, which first divides by 255: policies/common/vla_utils.py."""
    return _interpolated(image.astype(np.float32) / np.float32(255), height, width).clip(0, 1)


def _by_pillow(image: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Resize as openpi, by Pillow with antialiasing: openpi_client/image_tools.py."""
    if image.shape[:2] == (height, width):
        return image
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))


def _from(white: float, pixels: Tensor) -> Tensor:
    return pixels.div_(white).mul_(2.0).sub_(1.0)


def _from_half(pixels: Tensor) -> Tensor:
    return pixels.div_(127.5).sub_(1.0)


BILINEAR = Resize('bilinear', _in_floats, np.float32, partial(_from, 1.0))
# Before 0.5.0, LeRobot padded pixels of 0 to 1 with -1, which became -3.
BILINEAR_BEFORE_0_5 = Resize('bilinear', _in_floats, np.float32, partial(_from, 1.0), black=-1)
BILINEAR_CORNER = replace(BILINEAR, is_centred=False)  # of LeRobot's SmolVLA
PILLOW = Resize('pillow', _by_pillow, np.uint8, partial(_from, 255.0))
OWN_RESIZE = Resize('uint8', _interpolated, np.uint8, _from_half)
