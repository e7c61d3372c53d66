"""Ways are timed in alternating order, and the first round is warm-up."""

import time

import pytest

from benchmarks.common.clock import Ceilings, in_turn, now, order


def test_rounds_alternate_and_the_first_is_warm_up():
    called = []
    works = {way: lambda way=way: called.append(way) for way in 'abc'}
    taken = in_turn(works, 3, 'cpu')
    assert ''.join(called) == 'abccbaabccba'
    assert {way: len(own) for way, own in taken.items()} == dict(a=3, b=3, c=3)


def test_no_way_is_always_first():
    assert [order(('a', 'b'), number)[0] for number in range(4)] == ['a', 'b', 'a', 'b']


def test_time_on_a_cpu_is_work_and_not_waiting():
    began = now('cpu')
    time.sleep(0.05)
    assert now('cpu') - began < 0.02


def test_a_floor_is_the_slower_of_operations_and_bytes():
    machine = Ceilings(gflops=100, gbytes=10)
    assert machine.floor(flops=2e11, bytes=1e10) == pytest.approx(2)
    assert machine.floor(flops=2e11, bytes=3e10) == pytest.approx(3)
