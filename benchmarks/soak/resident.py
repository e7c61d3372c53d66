"""The resident memory of the process, and its growth.

Knows /proc and malloc. Does not know what holds the memory.
"""

from __future__ import annotations

import ctypes
import gc
import resource
from collections.abc import Sequence
from pathlib import Path

import numpy as np

MIB = 2**20


def resident() -> int:
    """Return the resident bytes of the process, without collecting garbage."""
    pages = int(Path('/proc/self/statm').read_text().split()[1])
    return pages * resource.getpagesize()


def trimmed() -> int:
    """Return the resident bytes after all free memory was returned to the system.

    The difference to `resident` is no leak.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return resident()


def growth(points: Sequence[int]) -> float:
    """Return the largest growth of a later point as a share of the first, < 0 for a decrease."""
    first, *later = points
    return max(later, default=first) / first - 1


def slope(frames: Sequence[int], points: Sequence[int]) -> float:
    """Return the bytes per frame, by least squares; 0 for fewer than two points."""
    return float(np.polyfit(frames, points, 1)[0]) if len(points) > 1 else 0.0
