"""Log lines of a kind at a bounded rate."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

WINDOW = 5.0  # s between two lines of a kind


@dataclass
class _Window:
    """Lines of a kind since `began` (s): logged, and held with the newest one of time `at` (s)."""

    began: float
    lines: int = 1
    held: int = 0
    newest: str = ''
    at: float = 0.0


class Throttled:
    """Logs the first line of a kind at once, and counts further ones within `window` s.

    Thread-safe. Each kind is remembered, so there should be few.

    Args:
        say: Takes a line.
        window: Time (s) between two lines of a kind.
        clock: Monotonic time (s).
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
        """Log or hold a line. burst: lines of this kind that are logged within `window` s."""
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
        """Log the newest line of each kind held for `window` s; call this periodically."""
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
