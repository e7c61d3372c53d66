"""How much memory the process holds, and whether it grows.

Knows /proc and malloc. Does not know who holds it.
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
    """Bytes of the process in memory; nothing is collected for it."""
    pages = int(Path('/proc/self/statm').read_text().split()[1])
    return pages * resource.getpagesize()


def trimmed() -> int:
    """The same, after all that can be given back was: what is more before that is no leak."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return resident()


def growth(points: Sequence[int]) -> float:
    """By which share of the first point a later one is above it at most; below 0: none is."""
    first, *later = points
    return max(later, default=first) / first - 1


def slope(frames: Sequence[int], points: Sequence[int]) -> float:
    """Bytes a frame, by least squares; 0 of less than two points."""
    return float(np.polyfit(frames, points, 1)[0]) if len(points) > 1 else 0.0
