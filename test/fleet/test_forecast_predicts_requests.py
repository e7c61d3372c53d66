"""The forecast of a request equals the moment at which the robot sends it."""

import math

from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.fleet.request_timing import LATE, Forecast, RequestTiming

DT = 0.1


@given(
    ahead=st.integers(0, 3),
    rounds=st.lists(st.tuples(st.integers(4, 10), st.floats(0.0, 0.35)), min_size=2, max_size=8),
)
def test_request_is_within_one_action_of_its_forecast(ahead, rounds):
    timing, forecast, now = RequestTiming(DT, ahead, 60.0), Forecast(), 5.0
    timing.begin('t')
    for number, (horizon, seconds) in enumerate(rounds):
        told = timing.execution(now)
        asked, answered = now, now + seconds
        timing.ask(asked)
        timing.take(horizon, asked, answered)
        now = max(answered, timing.ends - ahead * DT)  # when `due` becomes true
        if number:
            ahead_of_end = told.remaining * DT
            forecast.answered('r', asked, ahead_of_end, horizon * DT, answered)
            # A request reports the remaining actions rounded up to a whole number.
            assert now - DT - 1e-6 < forecast.next(answered) < now + 1e-6


def test_next_is_the_earliest_forecast():
    forecast = Forecast()
    assert forecast.next(0.0) == math.inf
    for robot, lasts in (('a', 3.0), ('b', 1.0), ('c', 2.0)):
        forecast.answered(robot, 0.0, 0.0, lasts, 0.0)
    assert forecast.next(0.0) == 1.0
    forecast.asked('b')
    forecast.forget('nobody')
    assert forecast.next(0.0) == 2.0
    forecast.forget('c')
    assert forecast.next(0.0) == 3.0


def test_overdue_forecast_expires():
    forecast = Forecast()
    forecast.answered('r', 0.0, 0.0, 1.0, 0.0)
    assert forecast.next(1.0 + 0.9 * LATE) == 1.0
    assert forecast.next(1.0 + 1.1 * LATE) == math.inf
