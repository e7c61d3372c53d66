"""A chunk is due after a period, or after the horizon of real-time chunking if that is later."""

import pytest

from embodied_kv.config import PI05, TABLETOP
from embodied_kv.engine_config import EngineConfig

PERIOD = 0.1


@pytest.mark.parametrize(
    'horizon, chunk_size, actions', [(0, 10, 5), (0, 50, 25), (0, 1, 1), (7, 10, 7), (60, 10, 10)]
)
def test_the_horizon_is_half_of_a_chunk_or_what_is_asked_within_it(horizon, chunk_size, actions):
    assert EngineConfig(rtc_horizon=horizon).horizon(chunk_size) == actions


@pytest.mark.parametrize(
    'parameters, model, seconds',
    [
        (dict(), TABLETOP, PERIOD),
        (dict(rtc_horizon=4), TABLETOP, PERIOD),  # rtc is off: a period for any horizon
        (dict(rtc='guided'), TABLETOP, 0.5),
        (dict(rtc='trained', rtc_horizon=4), TABLETOP, 0.4),
        (dict(rtc='guided'), PI05, 0.5),
        (dict(rtc='guided', rtc_horizon=2), PI05, PERIOD),
    ],
)
def test_a_chunk_is_due_a_period_or_a_horizon_after_its_observation(parameters, model, seconds):
    assert EngineConfig(**parameters).allowed(model, PERIOD) == pytest.approx(seconds)
