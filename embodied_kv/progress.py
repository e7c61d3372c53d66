"""Progress of long work and the time left: a bar on a terminal, else a line every 10 s."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

PERIOD = 10.0  # s between two lines

Item = TypeVar('Item')


class Progress:
    """Shows on stderr how many parts of the work are done, inside `with`.

    Args:
        what: Name of the parts.
        total: Number of the parts.
        done: Number of parts that an earlier run has done.
        seconds: Time (s) after which the work ends in any case.
        console: Where to print.
        clock: Time (s) for the lines.
    """

    def __init__(
        self,
        what: str,
        total: int,
        done: int = 0,
        seconds: float = float('inf'),
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what, self._total, self._first, self._done = what, total, done, done
        self._seconds, self._clock = seconds, clock
        self._console = console or Console(stderr=True)
        self._bar: Bar | None = None
        if self._console.is_terminal:
            columns = TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn()
            self._bar = Bar(*columns, TimeRemainingColumn(), console=self._console)
            self._task = self._bar.add_task(what, total=total, completed=done)

    def __enter__(self) -> Progress:
        self._began = self._clock()
        self._next = self._began + PERIOD
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, parts: int = 1) -> None:
        self._done += parts
        if self._bar is not None:
            self._bar.advance(self._task, parts)
        elif (now := self._clock()) >= self._next:
            self._next = now + PERIOD
            self._console.print(self._line(now - self._began), highlight=False, soft_wrap=True)

    def track(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield items; each is one part, which is done when the next one is requested."""
        for item in items:
            yield item
            self.advance()

    def _line(self, passed: float) -> str:
        left = self._seconds - passed
        if self._done > self._first:
            each = passed / (self._done - self._first)
            left = min(left, each * (self._total - self._done))
        return (
            f'{self._what}: {self._done} of {self._total}, {passed:.0f} s, '
            f'about {max(0.0, left):.0f} s left'
        )
