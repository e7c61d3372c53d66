"""A schedule computes all tokens in the first layer and never more than in the layer before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.memory.reuse_variants import SCHEDULES, Schedule, named_schedule


def test_average_is_the_mean_over_the_layers():
    assert Schedule((1.0, 0.5, 0.5, 0.0)).average == 0.5


def test_few_layers_have_their_share():
    assert named_schedule('gradual', 2, 0.65).ratios == (1, 0.3)
    assert named_schedule('even', 1, 1.0).ratios == (1,)


def test_one_average_is_spread_in_three_ways():
    average = (1 + 3 * 0.16) / 4
    assert named_schedule('even', 4, average).ratios == (1, 0.16, 0.16, 0.16)
    assert named_schedule('gradual', 4, average).ratios == pytest.approx((1, 0.24, 0.16, 0.08))
    assert named_schedule('gradual', 4, 0.9).ratios[1] <= 1, 'where 1 leaves no room for half more'
    first, *rest = named_schedule('falling', 4, average).ratios
    assert first == 1 and rest == sorted(rest, reverse=True) and rest[0] > 0.24


def test_an_unknown_schedule_is_refused():
    with pytest.raises(ValueError, match=r'must be one of even, gradual, falling .*steep'):
        named_schedule('steep', 4, 0.5)


@given(st.sampled_from(list(SCHEDULES)), st.integers(1, 64), st.floats(0, 1))
def test_any_average_that_can_be_is_met(name, layers, part):
    average = 1 / layers + part * (1 - 1 / layers)
    schedule = named_schedule(name, layers, average)
    assert schedule.average == pytest.approx(average, abs=1e-9)
    assert len(schedule.ratios) == layers


@pytest.mark.parametrize('ratios', [(), (0.9,), (1, 0.2, 0.3), (1, -0.1), (1, float('nan'))])
def test_other_shares_are_refused(ratios):
    with pytest.raises(ValueError, match='ratios must start at 1'):
        Schedule(ratios)


@pytest.mark.parametrize('name', SCHEDULES)
@pytest.mark.parametrize('average', [0.24, 1.01])
def test_an_average_out_of_reach_is_refused(name, average):
    with pytest.raises(ValueError, match=r'must be in \[0\.25, 1\] with 4 layers'):
        named_schedule(name, 4, average)
