"""The time in which nobody waits for a fleet's engine, as others of its process may wait for it.

Knows one question and a condition. Does not know requests, nor what the time is used for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PATIENCE = 0.1  # s


class Slack:
    """seconds: from a moment on, of the steady clock, nobody waits or is expected for so long."""

    def __init__(self, seconds: Callable[[float], float]) -> None:
        self.seconds = seconds
        self._changed = threading.Condition()

    def opened(self) -> None:
        """There may be some now."""
        with self._changed:
            self._changed.notify_all()

    def wait(self) -> None:
        """Until there is some; for PATIENCE at most, so that a busy engine is no end of it."""
        with self._changed:
            self._changed.wait_for(lambda: self.seconds(time.monotonic()) > 0, PATIENCE)
