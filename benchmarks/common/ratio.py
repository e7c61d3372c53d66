"""How many times as long one way takes as another over the same rounds, and intervals of means.

Knows numbers. Does not know what they measure.

Source: Efron and Tibshirani 1993, chapter 13, percentiles of resampled rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RESAMPLES, SEED = 2000, 0
RESAMPLED_MEANS = 10_000


def ratio(of: Sequence[float], to: Sequence[float]) -> dict[str, float]:
    """Return the median of the rounds' own ratios, since the load changes between rounds.

    low, high: its 95% interval; for few rounds, the minimum and the maximum.
    """
    ratios = np.asarray(of) / np.asarray(to)
    drawn = np.random.default_rng(SEED).integers(len(ratios), size=(RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(ratios[drawn], axis=1), [0.025, 0.975])
    return dict(ratio=float(np.median(ratios)), low=float(low), high=float(high))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95% bootstrap interval of a mean (percentiles of resampled means; seeded)."""
    values = np.asarray(values)
    drawn = np.random.default_rng(SEED).integers(len(values), size=(RESAMPLED_MEANS, len(values)))
    low, high = np.percentile(values[drawn].mean(1), (2.5, 97.5))
    return float(low), float(high)
