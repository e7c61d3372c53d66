"""Kairos orders requests by wait-ratio bucket, promotion and rank in a bucket (Algorithm 1)."""

import pytest
from fleet_cases import pick, waiting

from embodied_kv.fleet.schedulers import SCHEDULERS, Kairos, scheduler

NOW = 10.0


def names(found):
    return [request.robot for request in found]


def test_a_higher_ratio_goes_first():
    low = waiting('low', waited=2.0, execution=9.0)
    high = waiting('high', waited=8.0)
    assert names(Kairos().order([low, high], NOW)) == ['high', 'low']


def test_the_share_counts_and_not_the_sum():
    old = waiting('old', started=-90.0, waited=8.0)
    young = waiting('young', started=8.0, waited=1.0)
    assert names(Kairos().order([old, young], NOW)) == ['young', 'old']


def test_ratios_of_one_bucket_are_equal():
    a = waiting('a', waited=1.1, execution=1.0)
    b = waiting('b', waited=1.9, execution=0.5)
    assert names(Kairos(buckets=10).order([b, a], NOW)) == ['a', 'b']
    assert names(Kairos(buckets=100).order([a, b], NOW)) == ['b', 'a']


@pytest.mark.parametrize('waited', [10.0, 12.0])
def test_ratio_one_is_in_the_top_bucket(waited):
    top = waiting('top', waited=9.5, execution=2.0)
    full = waiting('full', waited=waited, execution=1.0)
    assert names(Kairos().order([full, top], NOW)) == ['top', 'full']


def test_a_task_starts_in_the_bottom_bucket():
    new = waiting('new', started=NOW, execution=50.0)
    other = waiting('other', waited=1.0)
    assert names(Kairos().order([new, other], NOW)) == ['other', 'new']


def test_a_bucket_is_gained_after_every_a_skipped_decisions():
    policy = Kairos(aging=5)
    rival = waiting('rival', waited=2.5, execution=50.0)  # in bucket 2
    for skipped, first in ((4, 'rival'), (5, 'rival'), (9, 'rival'), (14, 'rival'), (15, 'me')):
        me = waiting('me', execution=1.0)
        me.skipped = skipped
        assert names(policy.order([rival, me], NOW))[0] == first, skipped


def test_within_a_bucket_the_longest_execution_goes_first_and_ages():
    long = waiting('long', execution=1.5)
    short = waiting('short', execution=0.5)
    assert names(Kairos().order([short, long], NOW)) == ['long', 'short']
    short.skipped = 3  # 0.5 * 4 > 1.5
    assert names(Kairos().order([short, long], NOW)) == ['short', 'long']


def test_other_orders_within_a_bucket():
    a = waiting('a', arrived=1.0, execution=2.0)
    b = waiting('b', arrived=2.0, execution=1.0)
    assert names(Kairos(bucket_order='shortest').order([a, b], NOW)) == ['b', 'a']
    assert names(Kairos(bucket_order='fifo').order([b, a], NOW)) == ['a', 'b']


def test_decision_counts_for_requests_that_are_left_out():
    all_of_them = [waiting(str(i), arrived=float(i)) for i in range(4)]
    policy = scheduler('fifo')
    assert names(pick(policy, all_of_them, NOW, 2)) == ['0', '1']
    assert [request.skipped for request in all_of_them] == [0, 0, 1, 1]
    assert pick(policy, all_of_them, NOW, 0) == []
    assert [request.skipped for request in all_of_them] == [0, 0, 1, 1]


def test_orders_of_the_other_schedulers():
    a = waiting('a', arrived=1.0, generation=3.0, execution=2.0)
    b = waiting('b', arrived=2.0, generation=1.0, execution=3.0)
    c = waiting('c', arrived=3.0, generation=2.0, execution=1.0)
    orders = dict(fifo='abc', autellix='bca', shortest='cab')
    for name, order in orders.items():
        assert ''.join(names(scheduler(name).order([b, a, c], NOW))) == order


def test_unknown_names_and_settings_are_refused():
    with pytest.raises(ValueError, match=f"one of {', '.join(SCHEDULERS)} .got 'x'"):
        scheduler('x')
    with pytest.raises(ValueError, match='buckets and aging must be at least 1 .got 0 and 50'):
        Kairos(buckets=0)
    with pytest.raises(ValueError, match="bucket_order must be one of .*got 'odd'"):
        Kairos(bucket_order='odd')
