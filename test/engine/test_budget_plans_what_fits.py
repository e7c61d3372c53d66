"""With little time there are fewer Euler steps, or none; decode steps run in idle time only."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.engine.time_budget import STARVED, LatencyEstimator, TimeBudget


def make(step=0.01, **config):
    costs = LatencyEstimator()
    costs.observe('denoise_step', step)
    return TimeBudget(
        costs,
        **{'period': 0.1, 'margin': 0.005, 'euler_steps': 10, 'min_euler_steps': 4, **config},
    )


@given(left=st.floats(0, 0.3), step=st.floats(1e-4, 0.1))
def test_planned_steps_end_before_the_deadline(left, step):
    budget = make(step)
    steps = budget.euler_plan(now=0.0, deadline=left)
    assert steps == 0 or 4 <= steps <= 10
    assert steps * step <= max(0.0, left - budget.margin) + 1e-9
    if steps < 10:
        assert (
            max(steps, 3) + 1
        ) * step > left - budget.margin - 1e-9  # one more would not have fitted


def test_past_deadline_plans_nothing_even_before_any_measurement():
    budget = TimeBudget(
        LatencyEstimator(), period=0.1, margin=0.0, euler_steps=10, min_euler_steps=4
    )
    assert budget.euler_plan(now=1.0, deadline=2.0) == 4
    assert budget.euler_plan(now=1.0, deadline=0.9) == 0


def test_without_a_deadline_every_step_fits():
    assert make().euler_plan(now=1.0, deadline=math.inf) == 10
    assert make().euler_plan(now=1.0, deadline=-math.inf) == 0


@pytest.mark.parametrize('measured', [1, 7])
def test_an_estimate_that_lets_no_frame_be_in_time_is_tried_again(measured):
    budget = make(step=0.05)
    for _ in range(measured - 1):
        budget.latency.observe('denoise_step', 0.05)
    plans = [budget.euler_plan(now=i, deadline=i + 0.1) for i in range(measured + 1)]
    assert plans == [0] * measured + [4]
    budget.latency.observe('denoise_step', 0.005)  # it was slow for a while only
    assert budget.euler_plan(now=9.0, deadline=9.1) == 10


@pytest.mark.parametrize('allowed, kept', [(0.5, True), (None, False)])
def test_what_a_late_chunk_may_take_is_not_given_up(allowed, kept):
    budget = make(step=0.03, allowed=allowed)  # 4 steps take longer than a period
    assert budget.euler_plan(now=0.0, deadline=0.5) == 10
    assert (budget.latency.estimate('denoise_step') > 0) == kept


def test_a_prefill_longer_than_a_period_leaves_the_plan_to_the_deadline():
    budget = TimeBudget(
        LatencyEstimator(), period=0.1, margin=0.0, euler_steps=10, min_euler_steps=4
    )
    budget.latency.observe('prefill', 0.2)
    assert budget.euler_plan(now=0.0, deadline=0.1) == 4
    budget.latency.observe('denoise_step', 0.01)
    assert budget.euler_plan(now=0.0, deadline=0.1) == 10
    assert budget.latency.estimate('denoise_step') == 0.01  # kept: the prefill is the cause


def test_a_frame_that_comes_late_costs_no_measurement():
    budget = make(step=0.01)
    assert [budget.euler_plan(now=0.09, deadline=0.1) for _ in range(5)] == [0] * 5
    assert budget.latency.estimate('denoise_step') == 0.01


def test_an_estimate_that_fits_a_period_but_not_beside_a_prefill_is_tried_again():
    budget = make(step=0.012)
    budget.latency.observe('prefill', 0.06)
    frames = [budget.euler_plan(now=i + 0.06, deadline=i + 0.1) for i in range(2)]
    assert frames == [0, 4]


def test_slack_ends_where_the_next_prefill_is_expected():
    budget = make()
    budget.frame_began(10.0)
    assert budget.slack(10.03) == pytest.approx(0.1 - 0.005 - 0.03)
    assert budget.slack(10.12) < 0  # the frame is late, but may come at any moment
    assert budget.slack(10.21) == math.inf  # frames have stopped coming
    assert make().slack(0.0) == math.inf


def test_decode_is_admitted_only_if_its_cost_fits():
    budget = make()
    budget.latency.observe('decode', 0.02, size=4)
    budget.frame_began(0.0)
    assert budget.admits(0.07, 'decode', 4)
    assert not budget.admits(0.08, 'decode', 4)
    assert not budget.admits(
        0.05, 'decode', 16
    )  # a larger batch than any measured costs in proportion


def test_language_that_fits_no_period_is_tried_again_once_frames_have_gone_by():
    budget = make()
    assert _frames_without(budget, seconds=0.5) == STARVED + 2


def test_language_that_fits_no_rest_of_a_period_is_tried_again_once_frames_have_gone_by():
    # 85 ms fit into a period of 100 ms, but not into what prefill and denoising leave of it.
    assert _frames_without(make(), seconds=0.085, busy=0.03) == STARVED + 2


def test_language_that_never_fits_is_tried_less_and_less_often():
    budget, frames, tried = make(), 0, []
    for _ in range(5):
        tried.append(_frames_without(budget, seconds=0.5, first=frames))
        frames = sum(tried) + len(tried)
    assert [b - a for a, b in zip(tried, tried[1:], strict=False)] == [8, 16, 32, 64]


def test_language_that_fits_now_and_then_keeps_its_estimate():
    budget = make()
    for _ in range(3):
        budget.latency.observe('decode', 0.05, size=4)
    for frame in range(4 * STARVED):
        budget.frame_began(frame / 10)
        is_idle = frame % STARVED == 0
        assert budget.admits(frame / 10 + (0.0 if is_idle else 0.08), 'decode', 4) == is_idle
    assert budget.latency.count('decode', 4) == 3


def test_a_long_prompt_is_tried_although_short_ones_fit():
    budget = make()
    for _ in range(3):
        budget.latency.observe('begin', 0.01, size=8)
        budget.latency.observe('begin', 0.02, size=16)
        budget.latency.observe('begin', 0.05, size=64)
    for frame in range(4 * STARVED):
        budget.frame_began(frame / 10)
        now = frame / 10 + 0.06
        if budget.admits(now, 'begin', 64):
            assert budget.latency.count('begin', 16) == 3, 'other sizes keep their measurements'
            return
        assert budget.admits(now, 'begin', 8)
        budget.latency.observe('begin', 0.01, size=8)
    raise AssertionError('the long prompt is never tried')


def _frames_without(budget, seconds, busy=0.01, most=500, first=0):
    """Return the frames until a decode step is admitted that was measured three times."""
    for _ in range(3):
        budget.latency.observe('decode', seconds, size=4)
    for frame in range(most):
        budget.frame_began((first + frame) / 10)
        if any(budget.admits((first + frame) / 10 + busy, 'decode', 4) for _ in range(5)):
            return frame
    return most


def test_without_a_budget_everything_is_allowed():
    budget = make(enabled=False)
    budget.frame_began(0.0)
    assert budget.euler_plan(now=0.0, deadline=-1.0) == 10
    assert budget.admits(0.0999, 'decode', 1000)


def test_the_estimate_is_a_high_quantile_of_the_latest():
    costs = LatencyEstimator(window=10, quantile=0.9)
    for seconds in [100.0] * 5 + [1.0] * 8 + [2.0, 9.0]:
        costs.observe('decode', seconds)
    assert costs.estimate('decode') == 2.0
    assert costs.estimate('unknown') == 0.0


def test_estimates_of_a_size_come_from_the_next_larger_one():
    costs = LatencyEstimator()
    for size, seconds in ((1, 1.0), (4, 2.0), (8, 3.0)):
        costs.observe('decode', seconds, size)
    assert [costs.estimate('decode', size) for size in (1, 2, 4, 7, 16)] == [
        1.0,
        2.0,
        2.0,
        3.0,
        6.0,
    ]


def test_a_forecast_takes_the_place_of_the_period():
    budget = make()
    budget.latency.observe('decode', 0.01)
    budget.frame_began(0.0)
    assert budget.admits(0.0, 'decode') and not budget.admits(0.09, 'decode')
    budget.forecast = lambda now: {0.0: 0.0, 0.09: 0.0151}[now]
    assert not budget.admits(0.0, 'decode') and budget.admits(0.09, 'decode')
    budget.forecast = lambda now: math.inf
    assert budget.times(0.0, 'decode', 1, 8) == 8
