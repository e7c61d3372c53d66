"""Paired differences: counts, Bonett and Price's interval, grouped errors, McNemar's test."""

import math

import pytest

from benchmarks.common.paired import Z90, Z95, mcnemar, paired


def outcomes(both, gained, lost, neither):
    right = [True] * both + [True] * gained + [False] * lost + [False] * neither
    other = [True] * both + [False] * gained + [True] * lost + [False] * neither
    return right, other


def test_an_interval_is_bonett_and_prices():
    right, other = outcomes(60, 5, 15, 20)
    found = paired(right, other, range(100))
    assert (found['gained'], found['lost'], found['difference']) == (5, 15, -0.1)
    more, fewer = 6 / 102, 16 / 102
    error = math.sqrt((more + fewer - (more - fewer) ** 2) / 102)
    assert found['low'] == pytest.approx(more - fewer - Z95 * error)
    assert found['high'] == pytest.approx(more - fewer + Z95 * error)
    assert found['bound'] == pytest.approx(more - fewer - Z90 * error)


def test_equal_answers_leave_an_interval():
    found = paired([True] * 50, [True] * 50, range(50))
    assert found['difference'] == 0 and found['low'] < 0 < found['high']
    assert found['p_value'] == 1


def test_what_errs_together_counts_once():
    right, other = outcomes(60, 5, 15, 20)
    one = paired(right, other, range(100))
    four = paired(right * 4, other * 4, list(range(100)) * 4)
    alone = paired(right * 4, other * 4, range(400))
    assert four['difference'] == one['difference']
    width = {name: f['high'] - f['low'] for name, f in dict(o=one, f=four, a=alone).items()}
    assert width['a'] == pytest.approx(width['o'] / 2, rel=0.03)
    assert width['f'] == pytest.approx(width['o'], rel=0.03)


@pytest.mark.parametrize(
    'gained, lost, wanted', [(0, 0, 1), (1, 1, 1), (0, 6, 2 / 64), (2, 8, 112 / 1024)]
)
def test_mcnemar_is_exact(gained, lost, wanted):
    assert mcnemar(gained, lost) == mcnemar(lost, gained) == pytest.approx(wanted)
