"""No request is skipped more often than `starvation_bound`, whatever others request."""

from fleet_cases import pick, waiting
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_kv.fleet.schedulers import Kairos

SPREAD = 8.0
EXECUTIONS = st.sampled_from([0.1, 0.2, 0.5, 0.8])


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 12),
    st.integers(1, 3),
    st.integers(1, 6),
    st.integers(1, 10),
    st.data(),
)
def test_every_request_is_served_within_the_bound(robots, room, aging, buckets, data):
    """Served robots send another request at once, with any ratio and execution."""
    policy = Kairos(buckets=buckets, aging=aging)
    bound = policy.starvation_bound(robots, SPREAD)
    random = data.draw(st.randoms(use_true_random=False))

    def comes(i):
        waited = random.choice([0.0, 5.0, 10.0])
        return waiting(str(i), waited=waited, execution=random.choice([0.1, 0.2, 0.5, 0.8]))

    present = {str(i): comes(i) for i in range(robots)}
    for _ in range(3 * bound):
        batch = pick(policy, list(present.values()), 10.0, room)
        assert max(request.skipped for request in present.values()) <= bound
        for request in batch:
            present[request.robot] = comes(request.robot)


def test_worst_case_requests_do_not_starve_a_new_one():
    """All other requests are in the top bucket and have the longest execution, each time."""
    policy, robots = Kairos(buckets=10, aging=5), 10
    victim = waiting('victim', execution=0.1)
    present = {str(i): waiting(str(i), waited=10.0, execution=0.8) for i in range(robots - 1)}
    present['victim'] = victim
    order = []
    while not order or order[-1] is not victim:
        order += pick(policy, list(present.values()), 10.0, 1)
        present[order[-1].robot] = waiting(order[-1].robot, waited=10.0, execution=0.8)
    assert 40 < len(order) - 1 <= policy.starvation_bound(robots, SPREAD)  # the wait is long


def test_the_bound_in_numbers():
    assert Kairos(buckets=10, aging=50).starvation_bound(10, 4.0) == 450 + 9
    assert Kairos(buckets=10, aging=1).starvation_bound(100, 5.0) == 500 + 99
