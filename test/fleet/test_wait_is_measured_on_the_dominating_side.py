"""W_j is the gap on the side of the longer phase, each side on its own clock (section 3.2.1)."""

import pytest

from embodied_kv.fleet.rounds import UNKNOWN, Executions, WaitTime


def test_an_execution_dominated_round_waits_on_the_robots_side():
    wait = WaitTime()
    wait.generated(0, 0.0, 0.2)
    wait.executed(0, 0.3, 1.3, received=1.0)
    wait.generated(1, 1.4, 1.6)
    assert wait.total == 0  # the gap between generations is no wait
    wait.executed(1, 1.7, 2.7, received=2.0)
    assert wait.total == pytest.approx(0.4)


def test_a_generation_dominated_round_waits_on_the_servers_side():
    wait = WaitTime()
    wait.generated(0, 0.0, 1.0)
    wait.executed(0, 1.1, 1.4, received=1.2)
    wait.generated(1, 1.7, 2.7)
    assert wait.total == pytest.approx(0.7)
    wait.executed(1, 2.8, 3.1, received=2.9)  # the gap between executions is no wait
    assert wait.total == pytest.approx(0.7)


def test_equal_phases_count_as_generation_dominated():
    wait = WaitTime()
    wait.generated(0, 0.0, 1.0)
    wait.executed(0, 5.0, 6.0, received=5.5)
    wait.generated(1, 1.25, 2.25)
    assert wait.total == 0.25


def test_the_side_is_chosen_for_each_round():
    wait = WaitTime()
    for number, (generation, execution) in enumerate(
        [((0, 1), (1, 3)), ((2, 3), (3.5, 4)), ((3.75, 4.75), (4.75, 5))]
    ):
        wait.generated(number, *generation)
        wait.executed(number, *execution, received=execution[1])
    assert wait.total == pytest.approx(0.5 + 0.75)


def test_phases_that_overlap_wait_nothing():
    wait = WaitTime()
    for number in range(3):
        wait.generated(number, number - 0.2, number - 0.1)
        wait.executed(number, number, number + 1.0, received=number)
    assert wait.total == 0


def test_generation_and_the_newest_execution_are_kept():
    wait = WaitTime()
    wait.generated(0, 0.0, 0.5)
    wait.generated(1, 2.0, 2.25)
    wait.executed(1, 3.0, 4.5, 3.0)
    wait.executed(0, 1.0, 2.0, 3.0)  # a late report changes no estimate
    assert (wait.generation, wait.execution) == (0.75, 1.5)


def test_a_fleet_knows_its_median_execution():
    seen = Executions(kept=3)
    assert seen.median() == UNKNOWN
    for seconds in (9.0, 1.0, 2.0, 3.0):
        seen.add(seconds)
    assert seen.median() == 2.0
