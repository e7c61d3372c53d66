"""The first log line of a kind is logged at once; further ones are counted, none is lost."""

import threading

import pytest

from embodied_kv.throttle import Throttled


@pytest.fixture
def log():
    """Return a throttled logger with its clock and its lines."""

    class Log:
        now = 0.0

        def __init__(self):
            self.lines = []
            self.say = Throttled(self.lines.append, window=5.0, clock=lambda: self.now)

    return Log()


def test_the_first_is_said_at_once_and_the_next_after_a_while(log):
    for log.now in (0.0, 1.0, 4.9, 5.0):
        log.say('a', f'at {log.now}')
    assert log.lines == ['at 0.0', 'at 5.0 (and 2 more like it before)']


def test_kinds_do_not_wait_for_each_other(log):
    log.say('a', 'one')
    log.say('b', 'two')
    assert log.lines == ['one', 'two']


def test_the_newest_that_was_held_is_said_when_time_is_up(log):
    for number in range(1000):
        log.say('a', f'number {number}')
    log.now = 4.9
    log.say.flush()
    assert log.lines == ['number 0']
    log.now = 5.0
    log.say.flush()
    log.say.flush()
    assert log.lines[1:] == ['number 999 (5.0 s ago, and 998 more like it before)']
    log.say('a', 'again')
    assert len(log.lines) == 2  # the summary counts as a line


def test_one_that_was_held_is_said_with_its_age(log):
    log.say('a', 'first')
    log.now = 2.0
    log.say('a', 'second')
    log.now = 6.0
    log.say.flush()
    assert log.lines == ['first', 'second (4.0 s ago)']


def test_a_burst_is_said_at_once(log):
    for number in range(6):
        log.say('a', f'{number}', burst=4)
    assert log.lines == ['0', '1', '2', '3']


def test_lines_are_bounded_by_time_and_not_by_calls(log):
    for step in range(10_000):
        log.now = step / 100
        log.say('a', 'x')
        log.say.flush()
    assert len(log.lines) == 20


def test_threads_lose_no_line(log):
    threads = [
        threading.Thread(target=lambda: [log.say('a', 'x') for _ in range(500)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.now = 5.0
    log.say.flush()
    assert log.lines == ['x', 'x (5.0 s ago, and 1998 more like it before)']
