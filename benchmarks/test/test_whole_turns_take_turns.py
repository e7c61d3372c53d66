"""Functions that wait in virtual time run one at a time and in order."""

import pytest

from benchmarks.fleet.serving.schedule import Schedule
from benchmarks.whole.turns import Turn


def test_each_waits_until_its_moment_and_its_own_work_takes_no_time():
    schedule, seen = Schedule(), []

    def work(name, moments):
        for moment in moments:
            turns[name].until(moment)
            seen.append((name, schedule.now))

    turns = {
        'a': Turn(schedule, lambda: work('a', (1.0, 4.0))),
        'b': Turn(schedule, lambda: work('b', (2.0, 2.0, 3.0))),
    }
    for turn in turns.values():
        turn.start()
    schedule.run(lambda: True, lambda: None)
    assert seen == [('a', 1.0), ('b', 2.0), ('b', 2.0), ('b', 3.0), ('a', 4.0)]
    assert all(turn.is_over for turn in turns.values())


def test_a_wait_ends_once_with_what_it_is_given():
    schedule, got = Schedule(), []

    def begin(resume):
        schedule.at(schedule.now + 1.0, lambda: resume('first'))
        schedule.at(schedule.now + 2.0, lambda: resume('second'))

    def work():
        got.append((turn.wait(begin), schedule.now))
        turn.until(10.0)
        got.append(schedule.now)

    turn = Turn(schedule, work)
    turn.start()
    schedule.run(lambda: True, lambda: None)
    assert got == [('first', 1.0), 10.0]


def test_who_is_killed_ends_at_once_and_lets_go_of_what_it_holds():
    schedule, left, ended = Schedule(), [], []

    def work():
        try:
            turn.until(5.0)
        finally:
            left.append(schedule.now)

    turn = Turn(schedule, work, lambda: ended.append(True))
    turn.start()
    schedule.at(2.0, turn.kill)
    schedule.run(lambda: True, lambda: None)
    assert left == [2.0] and ended == [True] and turn.is_over
    turn.kill()
    assert ended == [True]


def test_an_error_is_raised_where_the_schedule_runs():
    schedule = Schedule()

    def work():
        turn.until(1.0)
        turn.here(lambda: 1)
        raise LookupError('nothing there')

    turn = Turn(schedule, work)
    turn.start()
    with pytest.raises(LookupError, match='nothing there'):
        schedule.run(lambda: True, lambda: None)
