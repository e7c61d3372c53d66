"""Log lines of a kind at a bounded rate, however often there is something to say.

Knows kinds, moments and counts. Does not know loggers, nor what a line is about.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

WINDOW = 5.0  # s between two lines of a kind


@dataclass
class _Window:
    """began: s. lines: said in it. held: not said, `newest` the last of them, of moment `at`."""

    began: float
    lines: int = 1
    held: int = 0
    newest: str = ''
    at: float = 0.0


class Throttled:
    """Says the first lines of a kind at once, and counts those that come within `window` s.

    say: takes a line. kinds are few: each is remembered. clock: s, never falling. From any thread.
    """

    def __init__(
        self,
        say: Callable[[str], object],
        window: float = WINDOW,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say, self._seconds, self._clock = say, window, clock
        self._lock = Lock()
        self._windows: dict[str, _Window] = {}

    def __call__(self, kind: str, line: str, burst: int = 1) -> None:
        """burst: lines of this kind that are said within `window` s before others are held."""
        with self._lock:
            now, window = self._clock(), self._windows.get(kind)
            if window is None or now - window.began >= self._seconds:
                self._windows[kind] = _Window(now)
                more = window.held if window else 0
            elif window.lines < burst:
                window.lines += 1
                more = 0
            else:
                window.held += 1
                window.newest, window.at = line, now
                return
        self._say(_counted(line, more))

    def flush(self) -> None:
        """Says the newest of what was held for `window` s, with its age; call it now and then."""
        with self._lock:
            now, due = self._clock(), []
            for kind, window in self._windows.items():
                if window.held and now - window.began >= self._seconds:
                    due.append(_counted(window.newest, window.held - 1, now - window.at))
                    self._windows[kind] = _Window(now)
        for line in due:
            self._say(line)


def _counted(line: str, more: int, age: float = 0.0) -> str:
    facts = [f'{age:.1f} s ago'] if age else []
    facts += [f'and {more} more like it before'] if more else []
    return f'{line} ({", ".join(facts)})' if facts else line
