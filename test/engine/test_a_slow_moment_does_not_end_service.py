"""After a slow moment, a policy server serves requests with deadlines again."""

import time
from dataclasses import replace

import numpy as np
import pytest

from embodied_kv.engine.time_budget import STARVED
from embodied_kv.serving.batch import LateError, TimedObservation, serve_in_time

SLOW = 30.0  # s
WINDOW = 64  # measurements of an estimate


@pytest.mark.parametrize('kind', ['prefill', 'denoise_step'])
@pytest.mark.parametrize('robots', [1, 2])
def test_estimates_of_a_slow_moment_are_dropped(make_engine, observe, kind, robots):
    engine = make_engine(time_budget=True, max_batch_robots=2)
    for _ in range(WINDOW):
        engine.latency.observe(kind, SLOW, robots)
    results = [LateError('')]
    for tried in range(2 * WINDOW):
        seen = replace(observe(tried), deadline=time.monotonic() + SLOW / 2)
        frames = [timed(seen, f'/r{i}') for i in range(robots)]
        results = serve_in_time(engine, frames)
        if not any(isinstance(result, Exception) for result in results):
            break
    assert not any(isinstance(result, Exception) for result in results)
    assert 0 < tried <= WINDOW + STARVED
    engine.kv.check_integrity()


def timed(seen, robot):
    facts = seen.images, np.asarray(seen.state), seen.instruction, seen.stamp, seen.deadline
    return TimedObservation(*facts, seen.sequence, robot)
