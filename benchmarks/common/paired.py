"""Difference of the rates of right answers of two ways to the same questions.

Knows right and wrong answers. Does not know what answered.

Source: McNemar 1947; Bonett and Price 2012, the adjusted Wald interval of a paired difference;
Cameron and Miller 2015, errors in groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Z95 = 1.959964  # of an interval of 95%
Z90 = 1.644854  # of a bound that holds with 95% on one side


def paired(right: Sequence[bool], other: Sequence[bool], groups: Sequence[int]) -> dict:
    """Return the rate of `right` less that of `other`, over the same questions.

    gained, lost: questions that only `right`, or only `other`, has right. low, high: 95% interval
    of the difference. bound: its one-sided 95% lower bound. p_value: McNemar's exact test. groups:
    questions with equal numbers may have correlated errors (they are about one frame); of the two
    standard errors, by questions and by groups, the larger is used.
    """
    difference = np.asarray(right, int) - np.asarray(other, int)
    n = len(difference)
    gained, lost = int((difference > 0).sum()), int((difference < 0).sum())
    more, fewer = (gained + 1) / (n + 2), (lost + 1) / (n + 2)
    centre = more - fewer
    error = math.sqrt((more + fewer - centre**2) / (n + 2))
    error = max(error, _grouped_error(difference, np.asarray(groups)))
    return dict(
        gained=gained,
        lost=lost,
        difference=(gained - lost) / n,
        low=centre - Z95 * error,
        high=centre + Z95 * error,
        bound=centre - Z90 * error,
        p_value=mcnemar(gained, lost),
    )


def _grouped_error(difference: np.ndarray, groups: np.ndarray) -> float:
    """Return the standard error of the mean if only groups are independent; 0 for one group."""
    _, group = np.unique(groups, return_inverse=True)
    count = group.max() + 1
    if count < 2:
        return 0.0
    sums = np.bincount(group, difference - difference.mean())
    return math.sqrt(count / (count - 1) * (sums**2).sum()) / len(difference)


def mcnemar(gained: int, lost: int) -> float:
    """Return the exact two-sided probability of a split at least this uneven under equal odds."""
    n, fewer = gained + lost, min(gained, lost)
    tail = sum(math.comb(n, i) for i in range(fewer + 1))
    return min(1.0, 2 * tail / 2**n)


def bootstrap(differences: Sequence[float], draws: int = 10_000, seed: int = 0) -> dict:
    """Return the mean of paired differences of graded scores, with bootstrapped bounds.

    differences: one of each independent group, for example a page. low, high: 95% interval, and
    bound: one-sided 95% lower bound of the mean, as percentiles of resampled means (Efron and
    Tibshirani 1993, chapter 13).
    """
    values = np.asarray(differences, float)
    drawn = np.random.default_rng(seed).integers(len(values), size=(draws, len(values)))
    low, bound, high = np.percentile(values[drawn].mean(1), (2.5, 5.0, 97.5))
    found = dict(difference=values.mean(), low=low, high=high, bound=bound)
    return {name: float(value) for name, value in found.items()}
