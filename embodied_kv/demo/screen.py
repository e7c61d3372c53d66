"""The display of a running demo: a live table, or without a terminal a line every ten seconds."""

from __future__ import annotations

import time

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from embodied_kv.demo.director import Director
from embodied_kv.demo.monitor import Monitor
from embodied_kv.demo.picture import printable
from embodied_kv.demo.sim.language import NARRATE, SUBTASK

PERIOD, LINES = 0.25, 10.0  # s between two updates, and between two lines
LATELY = 30  # commands of which the medians are shown
WORDS = 120  # characters of a text


class Screen:
    """Displays a Monitor. live: as a table, if the output is a terminal."""

    def __init__(self, live: bool) -> None:
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False) if live else None
        if not self._console.is_terminal:
            self._live = None
        self._next = time.monotonic()
        self._next_line, self._runs = 0.0, False

    def __enter__(self) -> Screen:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def due(self) -> bool:
        """Return whether an update is due."""
        if (now := time.monotonic()) < self._next:
            return False
        self._next = now + PERIOD
        return True

    def show(self, monitor: Monitor, director: Director, elapsed: float) -> None:
        """Display the present state. elapsed: s since the start of the demo."""
        rows = _rows(monitor, director, elapsed)
        if self._live:
            table = Table(title='embodied_kv', min_width=60)
            table.add_column('what', style='bold')
            table.add_column('now')
            for name, value in rows.items():
                table.add_row(name, Text(value))
            self._live.update(table, refresh=True)
        elif self._is_time(monitor.began is not None):
            line = ', '.join(f'{name} {value}' for name, value in rows.items())
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _is_time(self, runs: bool) -> bool:
        """Return whether a line is due: periodically, and with the first command."""
        now = time.monotonic()
        if now < self._next_line and runs == self._runs:
            return False
        self._next_line, self._runs = now + LINES, runs
        return True


def _rows(monitor: Monitor, director: Director, elapsed: float) -> dict[str, str]:
    if monitor.began is None:
        return {'starting': f'{elapsed:.0f} s'}
    commands = monitor.commands[-LATELY:]
    prefill = np.median([command.prefill_ms for command in commands])
    denoise = np.median([command.denoise_ms for command in commands])
    language = monitor.diagnostics.get('language', {})
    judged = director.judged
    return {
        'weights': monitor.weights,
        'time': f'{monitor.seconds:.1f} s',
        'frames/s': f'{monitor.rate("frames"):.1f}',
        'prefill': f'{prefill:.1f} ms',
        'denoise': f'{denoise:.1f} ms',
        'decode': f'{language.get("decode (ms)", "-")} ms',
        'deadlines missed': f'{monitor.missed} of {len(monitor.commands)}',
        'live streams': str(monitor.stats.streams),
        'tokens/s': f'{monitor.rate("tokens"):.0f}',
        'tasks done': f'{sum(bool(told.done) for told in judged)} of {len(judged)}',
        'replaced': str(sum(bool(told.replaced) for told in judged)),
        'instruction': monitor.instruction,
        'subtask': _said(monitor, SUBTASK),
        'narration': _said(monitor, NARRATE),
    }


def _said(monitor: Monitor, query: str) -> str:
    words = monitor.newest.get(query)
    return printable(words.text.strip())[:WORDS] if words else '-'
