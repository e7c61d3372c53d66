"""Duplicate reports, order and clock offsets change no wait; a robot cannot claim a longer one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.fleet.rounds import KEPT, WaitTime

SECONDS = st.floats(0.01, 2.0)


@st.composite
def histories(draw):
    """Generate reports of a robot and a server in their true order."""
    reports, free, ended = [], 0.0, 0.0
    for number in range(draw(st.integers(1, 8))):
        start = free + draw(st.floats(0, 1))
        end = start + draw(SECONDS)
        begin = max(end, ended) + draw(st.floats(0, 0.5))
        ended, free = begin + draw(SECONDS), end
        reports.append(('generated', number, start, end))
        reports.append(('executed', number, begin, ended))
    return reports


def told(reports, offset=0.0):
    wait = WaitTime()
    for kind, number, start, end in reports:
        if kind == 'generated':
            wait.generated(number, start, end)
        else:
            wait.executed(number, start + offset, end + offset, received=max(start, end))
    return wait


@given(histories(), st.randoms(), st.integers(1, 3))
def test_order_and_repetition_do_not_matter(reports, random, times):
    expected = told(reports)
    shuffled = reports * times
    random.shuffle(shuffled)
    found = told(shuffled)
    assert found.total == pytest.approx(expected.total)
    assert found.generation == pytest.approx(expected.generation)
    assert found.execution == pytest.approx(expected.execution)


@given(histories(), st.sampled_from([-5.0, 5.0, 1e6]))
def test_a_clock_offset_does_not_matter(reports, offset):
    assert told(reports, offset).total == pytest.approx(told(reports).total, abs=1e-6)


@given(histories())
def test_the_total_equals_the_definition(reports):
    rounds = {}
    for kind, number, start, end in reports:
        rounds.setdefault(number, {})[kind] = start, end
    total = 0.0
    for number in range(len(rounds) - 1):
        here, after = rounds[number], rounds[number + 1]
        generation, execution = here['generated'], here['executed']
        side = 'generated'
        if round(generation[1] - generation[0], 6) < round(execution[1] - execution[0], 6):
            side = 'executed'
        total += max(after[side][0] - here[side][1], 0.0)
    assert told(reports).total == pytest.approx(total)


def test_a_clock_that_jumps_is_bounded_by_what_the_server_saw():
    wait = WaitTime()
    wait.generated(0, 0.0, 0.2)
    wait.executed(0, 0.3, 1.3, received=1.0)
    wait.executed(1, 3600.0, 3601.0, received=2.0)  # the robot's clock went an hour ahead
    assert wait.total == pytest.approx(2.0 - 0.2 - 1.0)
    wait.generated(1, 1.5, 1.6)
    wait.executed(2, 5.0, 6.0, received=3.0)  # and back: no negative wait
    assert wait.total == pytest.approx(0.8)


def test_lost_round_does_not_count():
    wait = WaitTime()
    for number in (0, 2):
        wait.generated(number, 10.0 * number, 10.0 * number + 1)
        wait.executed(number, 10.0 * number + 1, 10.0 * number + 3, received=10.0 * number + 2)
    assert wait.total == 0


def test_a_round_far_behind_is_forgotten():
    wait = WaitTime()
    for number in range(1000):
        wait.generated(number, number, number + 0.5)
        wait.executed(number, number, number + 0.2, received=number)
    before = wait.total
    wait.generated(1000 - KEPT - 1, 0.0, 1.0)
    assert wait.total == before
    assert len(wait._rounds) <= KEPT
