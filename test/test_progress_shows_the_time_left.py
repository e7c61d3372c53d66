"""Long work shows its progress and the time left, on a terminal and without one."""

import io

import pytest
from rich.console import Console

from embodied_kv.progress import PERIOD, Progress


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def shown(is_terminal):
    return Console(file=io.StringIO(), force_terminal=is_terminal, width=100)


def lines(console):
    return console.file.getvalue().splitlines()


def test_a_line_comes_every_ten_seconds_without_a_terminal():
    console, clock = shown(False), Clock()
    with Progress('steps', 100, console=console, clock=clock) as progress:
        for _ in progress.track(range(100)):
            clock.now += 0.3 * PERIOD
    assert len(lines(console)) == pytest.approx(30, abs=6)
    assert lines(console)[0] == 'steps: 4 of 100, 12 s, about 288 s left'


def test_work_that_is_short_prints_nothing_without_a_terminal():
    console, clock = shown(False), Clock()
    with Progress('steps', 3, console=console, clock=clock) as progress:
        for _ in progress.track(range(3)):
            clock.now += 0.3 * PERIOD
    assert lines(console) == []


@pytest.mark.parametrize('seconds, left', [(1000.0, 60), (50.0, 30)])
def test_the_time_left_ends_with_the_work_or_with_the_time_given(seconds, left):
    console, clock = shown(False), Clock()
    with Progress('steps', 100, 80, seconds, console, clock) as progress:
        clock.now += 2 * PERIOD
        progress.advance(5)  # 4 s each, since an earlier run did 80
    assert lines(console) == [f'steps: 85 of 100, 20 s, about {left} s left']


def test_a_terminal_shows_a_bar_whose_last_state_stays():
    console = shown(True)
    with Progress('steps', 20, console=console) as progress:
        for _ in progress.track(range(20)):
            pass
    assert '20/20' in console.file.getvalue() and 'steps' in console.file.getvalue()


def test_work_that_stops_in_the_middle_gives_the_terminal_back():
    console = shown(True)
    with pytest.raises(ValueError, match='bad'), Progress('steps', 2, console=console) as progress:
        for _ in progress.track([1, 2]):
            raise ValueError('bad')
    assert console.file.getvalue().rstrip('\n').endswith('\x1b[?25h')  # the cursor is shown
