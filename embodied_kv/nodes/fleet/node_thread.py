"""A thread that serves nodes of a fleet: it may wait, the fleet's own node may not.

Knows an executor and what is to be done between two of its turns. Does not know what the nodes do.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from functools import partial

from rclpy.executors import Executor
from rclpy.impl.implementation_singleton import rclpy_implementation

from embodied_kv.text import trace
from embodied_kv.throttle import Throttled

InvalidHandle = rclpy_implementation.InvalidHandle
WAKE = 0.2  # s between two looks for events, if nothing wakes it


class NodeThread(threading.Thread):
    """Serves the nodes of an executor, and runs events, in their order, until `stop`."""

    def __init__(self, name: str, executor: Executor) -> None:
        super().__init__(name=name, daemon=True)
        self.executor = executor
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._faults = Throttled(logging.getLogger(__name__).error)

    def put(self, event: Callable[[], None]) -> None:
        """Run it on the thread. What it raises is logged: one robot's fault is not the others'."""
        self._events.put(event)
        self.executor.wake()

    def stop(self) -> None:
        """Ends the thread after the events that there are."""
        self._events.put(None)
        self.executor.wake()
        self.join()
        self.executor.shutdown()

    def run(self) -> None:
        while self.executor.context.ok():
            while not self._events.empty():
                event = self._events.get()
                if event is None:
                    return
                self._survive(event)
            self._faults.flush()
            self._survive(partial(self.executor.spin_once, timeout_sec=WAKE))

    def _survive(self, work: Callable[[], None]) -> None:
        try:
            work()
        except InvalidHandle:
            pass  # a robot left while the answer of its service was made
        except Exception as error:
            self._faults(type(error).__name__, f'{self.name}: work failed\n{trace(error)}')
