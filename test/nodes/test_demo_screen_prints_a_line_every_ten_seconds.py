"""Without a terminal the demo prints a line every ten seconds."""

from types import SimpleNamespace

import pytest

from embodied_kv.demo import screen
from embodied_kv.demo.screen import LINES, Screen


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(screen.time, 'monotonic', lambda: now.seconds)
    return now


def test_a_start_of_a_minute_has_a_line_every_ten_seconds(clock, capsys):
    monitor = SimpleNamespace(began=None)
    with Screen(live=True) as shown:
        for elapsed in range(60):
            clock.seconds = 100.0 + elapsed
            assert shown.due()
            shown.show(monitor, None, elapsed)
    assert capsys.readouterr().out.splitlines() == [
        f'starting {s:.0f} s' for s in range(0, 60, round(LINES))
    ]


def test_the_first_command_is_shown_at_once(clock, capsys, monkeypatch):
    monkeypatch.setattr(screen, '_rows', lambda monitor, *_: {'began': str(monitor.began)})
    with Screen(live=False) as shown:
        for began in (None, None, 1, 1):
            shown.show(SimpleNamespace(began=began), None, 0.0)
    assert capsys.readouterr().out.splitlines() == ['began None', 'began 1']
