"""Schedulers of four synchronous tasks on one engine are compared with every possible schedule.

The tasks differ in execution time, as in Figure 5 of the paper, whose text gives no durations.
"""

import numpy as np
import pytest
from fleet_cases import least_wait, synchronous
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_kv.fleet.schedulers import SCHEDULERS, Fifo, Kairos, LeastAttained, scheduler

FOUR = ((3.0, 3), (2.0, 3), (0.5, 3), (1.5, 1))  # s of an execution, rounds; a generation is 1 s


def waited(tasks, policy):
    """Return the total queueing time of all tasks, s."""
    alone = [rounds * (1 + execution) for execution, rounds in tasks]
    return float((synchronous(tasks, policy).latency - alone).sum())


def test_kairos_waits_less_than_fifo_and_autellix_and_no_less_than_the_best():
    best, ours = least_wait(FOUR), waited(FOUR, Kairos())
    assert ours == pytest.approx(11)
    assert waited(FOUR, Fifo()) == pytest.approx(12)
    assert waited(FOUR, LeastAttained()) == pytest.approx(12)
    assert best == pytest.approx(8)


TASKS = st.tuples(st.sampled_from([0.5, 1.0, 2.0, 3.0]), st.integers(1, 2))


@settings(max_examples=20, deadline=None)
@given(st.lists(TASKS, min_size=4, max_size=4).map(tuple))
def test_no_scheduler_beats_brute_force(tasks):
    best = least_wait(tasks)
    assert all(waited(tasks, scheduler(name)) >= best - 1e-6 for name in SCHEDULERS)


def test_on_many_small_fleets_the_order_hardly_matters():
    """With four tasks, Kairos and FIFO wait equally long: the gain of Kairos needs a queue."""
    rng = np.random.default_rng(1)
    fleets = [
        tuple((float(rng.choice([0.5, 1, 2, 3, 4])), int(rng.integers(1, 5))) for _ in range(4))
        for _ in range(200)
    ]
    ours, fifo = (sum(waited(f, policy) for f in fleets) for policy in (Kairos(), Fifo()))
    assert ours == pytest.approx(fifo, rel=0.02)
