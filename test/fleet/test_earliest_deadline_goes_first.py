"""EarliestDeadline serves the earliest deadline first and starves no request."""

import math

from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.fleet.schedulers import EarliestDeadline, Waiting

MOMENTS = st.floats(0, 100)


def waiting(arrived, deadline=math.inf, robot='r'):
    return Waiting(robot, 't', 0, arrived, arrived, 0.0, 0.0, 1.0, deadline=deadline)


def test_the_earlier_deadline_goes_first_and_none_counts_as_patience():
    late, soon, none = waiting(0.0, 0.9), waiting(0.1, 0.5), waiting(0.2)
    far = waiting(0.1, 50.0)
    order = EarliestDeadline(patience=1.0).order([none, late, far, soon], 0.3)
    assert order == [soon, late, far, none]


def test_without_deadlines_it_is_first_come_first_served():
    requests = [waiting(arrived) for arrived in (3.0, 1.0, 2.0)]
    assert [r.arrived for r in EarliestDeadline().order(requests, 4.0)] == [1.0, 2.0, 3.0]


@given(st.lists(st.tuples(MOMENTS, st.floats(-1e9, 1e9) | st.just(math.inf)), min_size=1))
def test_no_request_is_overtaken_after_patience(drawn):
    scheduler = EarliestDeadline(patience=1.0)
    order = scheduler.order([waiting(*one) for one in drawn], 100.0)
    assert len(order) == len(drawn)
    for place, first in enumerate(order):
        for later in order[place + 1 :]:
            assert first.arrived <= later.arrived + scheduler.patience
