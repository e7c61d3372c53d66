"""Functions that wait for each other in virtual time: threads of which one runs at a time.

Knows a schedule. Does not know what waits, or for what. The computation of a function itself,
between two waits, takes no virtual time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from benchmarks.fleet.serving.schedule import Schedule

T = TypeVar('T')
Resume = Callable[[object], None]


class Killed(BaseException):
    """Ends the function of a turn where it waits; nothing may catch it."""


class Turn:
    """A function on a thread of its own, which runs while no other function does.

    on_end: called once the function has returned, or was killed. An error of the function is
    raised where the schedule is run.
    """

    def __init__(
        self,
        schedule: Schedule,
        work: Callable[[], object],
        on_end: Callable[[], object] = lambda: None,
    ) -> None:
        self._schedule, self._work, self._on_end = schedule, work, on_end
        self._mine, self._others = threading.Semaphore(0), threading.Semaphore(0)
        self._wait_number, self._is_dead, self.is_over = 0, False, False
        self._begin: Callable[[Resume], object] = lambda resume: None
        self._value: object = None
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Schedule the first turn for now."""
        self._thread.start()
        self._schedule.at(self._schedule.now, partial(self._go, 0, None))

    # ------------------------------------------------------------------ on its own thread

    def wait(self, begin: Callable[[Resume], object]) -> object:
        """Give up the turn until a callback is called, and return the value it is called with.

        begin: takes the callback; called where the schedule runs. Raises Killed.
        """
        if self._is_dead:
            raise Killed
        self._begin = begin
        self._others.release()
        self._mine.acquire()
        if self._is_dead:
            raise Killed
        return self._value

    def here(self, work: Callable[[], T]) -> T:
        """Run work where the schedule runs, and return its result; this takes no virtual time."""
        return self.wait(lambda resume: resume(work()))

    def until(self, moment: float) -> None:
        """Wait until a moment of virtual time."""
        self.wait(lambda resume: self._schedule.at(moment, partial(resume, None)))

    def _run(self) -> None:
        self._mine.acquire()
        try:
            if not self._is_dead:
                self._work()
        except Killed:
            pass
        except BaseException as error:  # raised where the schedule runs
            self._fault = error
        self.is_over = True
        self._others.release()

    # ------------------------------------------------------------------ where the schedule runs

    def kill(self) -> None:
        """End the function where it waits, before this returns."""
        if self.is_over or self._is_dead:
            return
        self._is_dead = True
        self._mine.release()
        self._others.acquire()
        self._ended()

    def _go(self, number: int, value: object) -> None:
        """Run the function until its next wait, if it still waits for this number."""
        if self._is_dead or self.is_over or number != self._wait_number:
            return
        self._wait_number, self._value = number + 1, value
        self._mine.release()
        self._others.acquire()
        if self.is_over:
            self._ended()
        else:
            self._begin(partial(self._resume, self._wait_number))

    def _resume(self, number: int, value: object) -> None:
        self._schedule.at(self._schedule.now, partial(self._go, number, value))

    def _ended(self) -> None:
        if self._fault is not None:
            raise self._fault
        self._on_end()
