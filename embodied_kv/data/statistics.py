"""Statistics of the features of a data set, under LeRobot's names.

Numbers have min, max, mean, std, count and quantiles of each dimension. Images have them of each
channel in [0, 1], with shape [3, 1, 1]. They are computed from histograms of sampled frames, which
are summed over episodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

QUANTILES = (0.01, 0.10, 0.50, 0.90, 0.99)
SAMPLES = 32  # images of an episode
PIXELS = 64  # approximate rows and columns of an image that are sampled

Stats = dict[str, list]


def of_numbers(values: NDArray) -> Stats:
    """Return the statistics of [frames, dimensions] without frames with NaN; zeros if all have."""
    x = np.asarray(values, np.float64)
    known = ~np.isnan(x).any(1)
    x = x[known] if known.any() else np.zeros((1, x.shape[1]))
    named = {f'q{round(100 * q):02d}': np.quantile(x, q, axis=0) for q in QUANTILES}
    found = {'min': x.min(0), 'max': x.max(0), 'mean': x.mean(0), 'std': x.std(0), **named}
    return {name: value.tolist() for name, value in found.items()} | {'count': [int(known.sum())]}


def sampled(count: int) -> Sequence[int]:
    """Return the sampled frames of an episode."""
    return sorted({round(i) for i in np.linspace(0, count - 1, min(count, SAMPLES))})


def histogram(pixels: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the histogram [3, 256] of every n-th row and column of [height, width, 3]."""
    rows, columns = (max(1, length // PIXELS) for length in pixels.shape[:2])
    few = pixels[::rows, ::columns].reshape(-1, 3)
    return np.stack([np.bincount(few[:, c], minlength=256) for c in range(3)])


def of_histogram(counts: NDArray[np.int64], frames: int) -> Stats:
    """Return the statistics of images from their histogram. frames: number of images."""
    level, total = np.arange(256) / 255, counts.sum(1)
    mean = counts @ level / total
    variance = np.maximum(counts @ level**2 / total - mean**2, 0)
    summed = counts.cumsum(1)
    seen = counts > 0
    found = {
        'min': level[seen.argmax(1)],
        'max': level[255 - seen[:, ::-1].argmax(1)],
        'mean': mean,
        'std': np.sqrt(variance),
        **{
            f'q{round(100 * q):02d}': level[(summed >= q * total[:, None]).argmax(1)]
            for q in QUANTILES
        },
    }
    shaped = {name: value.reshape(3, 1, 1).tolist() for name, value in found.items()}
    return shaped | {'count': [frames]}
