"""Rates are reported with Wilson's 95% interval."""

import pytest

from training.evaluate.report import rate, wilson


@pytest.mark.parametrize(
    'k, n, low, high',  # Newcombe 1998, table I, method 3
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_the_interval_equals_the_published_one(k, n, low, high):
    assert wilson(k, n) == pytest.approx((low, high), abs=5e-5)


def test_the_interval_of_failures_mirrors_that_of_successes():
    low, high = wilson(294, 300)
    assert wilson(6, 300) == pytest.approx((1 - high, 1 - low))


def test_nothing_seen_says_nothing():
    assert wilson(0, 0) == (0.0, 1.0)


def test_a_rate_carries_its_counts():
    assert rate(81, 263) == dict(k=81, n=263, rate=0.308, low=0.2553, high=0.3662)
