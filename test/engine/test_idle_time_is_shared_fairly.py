"""Clients with work in the idle time receive it in proportion to their values."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.engine.idle_work import FairShares

CLIENT = st.tuples(st.floats(0.001, 0.1), st.sampled_from([1.0, 2.0, 5.0]))
CLIENTS = st.dictionaries(st.sampled_from('abcdef'), CLIENT, min_size=2)


@given(clients=CLIENTS, units=st.integers(1, 300))
def test_clients_that_always_have_work_differ_by_at_most_one_unit_of_each(clients, units):
    shares, received = FairShares(), dict.fromkeys(clients, 0.0)
    for _ in range(units):
        client = shares.order(clients)[0]
        seconds, value = clients[client]
        shares.served(client, seconds, value)
        received[client] += seconds / value
    longest = {client: seconds / value for client, (seconds, value) in clients.items()}
    for one, other in pairwise(sorted(received, key=received.__getitem__)):
        assert received[other] - received[one] <= longest[one] + longest[other] + 1e-9


def test_a_client_without_work_saves_up_no_time():
    shares = FairShares()
    for _ in range(1000):
        shares.served('text', 0.01)
    order = []
    for _ in range(10):
        order.append(shares.order(['plan', 'text'])[0])
        shares.served(order[-1], 0.01)
    assert order.count('plan') in (5, 6)


@given(clients=CLIENTS, others=st.lists(st.sampled_from('abcdef'), max_size=60))
def test_no_client_starves(clients, others):
    """A client that begins to have work is served before others get more than a unit ahead."""
    shares = FairShares()
    for client in others:
        shares.served(client, *clients.get(client, (0.05, 1.0)))
    waited = dict.fromkeys(clients, 0.0)
    new = 'new'
    while (client := shares.order([*clients, new])[0]) != new:
        seconds, value = clients[client]
        shares.served(client, seconds, value)
        waited[client] += seconds / value
    for client, seconds in waited.items():
        assert seconds <= 1e-9 + clients[client][0] / clients[client][1]


@pytest.mark.parametrize('value, units', [(1.0, [50, 50]), (3.0, [25, 75])])
def test_a_client_for_several_robots_receives_the_shares_of_all(value, units):
    shares, count = FairShares(), {'plan': 0, 'text': 0}
    for _ in range(100):
        client = shares.order(count)[0]
        shares.served(client, 0.02, value if client == 'text' else 1.0)
        count[client] += 1
    assert [*count.values()] == pytest.approx(units, abs=2)


def test_clients_that_have_gone_are_not_remembered():
    shares = FairShares()
    for number in range(100):
        shares.served(f'frame {number}', 0.01)
    shares.rest()
    assert not shares._ends and shares.order(['b', 'a']) == ['b', 'a']
