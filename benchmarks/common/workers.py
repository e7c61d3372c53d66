"""Threads, callbacks and processes of a benchmark, whose failure makes the benchmark fail.

Without this, a thread that fails would end alone, and a failing callback of a future would only be
logged: the benchmark would go on and report figures of a part of its work. Knows errors and exit
statuses. Does not know what a worker does.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import wraps
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty
from typing import Any, ParamSpec, TypeVar

P, T = ParamSpec('P'), TypeVar('T')
ROOT = Path(__file__).resolve().parents[2]
FUTURES = logging.getLogger('concurrent.futures')  # logs what callbacks of futures raise


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a child process that imports `benchmarks` from any folder.

    Args:
        variables: Additional variables.
    """
    paths = [str(ROOT), os.environ.get('PYTHONPATH', '')]
    return {**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, paths)), **variables}


class Workers(logging.Handler):
    """Collects errors of workers; a context manager that ends with the first of them.

    Threads of this process and callbacks of futures are observed automatically within the context;
    `watch` and `watched` add other work. An error of a worker replaces an error of the block
    itself, which it may have caused. expected: returns whether an error does not count.
    """

    def __init__(self, expected: Callable[[BaseException], bool] = lambda error: False) -> None:
        super().__init__(logging.ERROR)
        self._expected = expected
        self._first: BaseException | None = None

    def __enter__(self) -> Workers:
        self._hook, threading.excepthook = threading.excepthook, self._on_thread
        FUTURES.addHandler(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        FUTURES.removeHandler(self)
        threading.excepthook = self._hook
        if error is None or isinstance(error, Exception):
            self.check()

    def check(self) -> None:
        """Raise the first error of a worker, if there is one."""
        if self._first is not None:
            raise self._first

    def failed(self, error: BaseException, worker: str = '') -> None:
        """Record an error. Any thread may call it."""
        if self._first is None and not self._expected(error):
            self._first = error
            worker = worker or threading.current_thread().name
            print(f'{worker} failed, so the benchmark fails: {error!r}', file=sys.stderr)

    def watch(self, future: Future[T]) -> Future[T]:
        """Return the same future, whose error counts; a cancellation does not."""
        future.add_done_callback(self._on_done)
        return future

    def watched(self, work: Callable[P, T]) -> Callable[P, T]:
        """Return the same function, whose errors count even if a caller catches them."""

        @wraps(work)
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return work(*args, **kwargs)
            except Exception as error:
                self.failed(error)
                raise

        return run

    def emit(self, record: logging.LogRecord) -> None:
        """Record what a callback raised."""
        if record.exc_info and record.exc_info[1] is not None:
            self.failed(record.exc_info[1])

    def _on_done(self, future: Future) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None and not isinstance(error, CancelledError):
            self.failed(error)

    def _on_thread(self, args: threading.ExceptHookArgs) -> None:
        error = args.exc_value if args.exc_value is not None else args.exc_type()
        self.failed(error, args.thread.name if args.thread is not None else '')


def check_status(process: str, status: int | None, words: str = '') -> None:
    """Raise RuntimeError if a process has ended with a status other than 0; None: it runs.

    process: its name. words: its last output.
    """
    if status:
        raise RuntimeError(f'{process} failed: exit status {status}{words and ": "}{words}')


def received(queue: Queue, *processes: Any) -> Any:
    """Return what one of these children (multiprocessing.Process) puts into the queue.

    Raises RuntimeError if one of them failed, or all ended, before anything was put.
    """
    while True:
        ended = not any(process.is_alive() for process in processes)
        try:
            return queue.get(timeout=1.0)  # where they have ended, all that they put is there
        except Empty:
            for process in processes:
                check_status(process.name, process.exitcode)
            if ended:
                names = ', '.join(process.name for process in processes)
                raise RuntimeError(f'{names} ended without a result') from None
