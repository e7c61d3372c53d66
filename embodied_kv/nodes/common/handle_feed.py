"""How readers of rows in this process get the handle of each new frame: by a call, not a message.

Knows handles and listeners. Does not know topics, nor what is read from a row. The topic
`kv_handle` carries the same handles for other nodes of the process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from embodied_kv.kv.handle import KvHandle
from embodied_kv.text import trace
from embodied_kv.throttle import Throttled

Listener = Callable[[KvHandle], object]


class HandleFeed:
    """The frames of one robot, in their order, for each listener. From any thread.

    `give` calls the listeners on the device thread as soon as a row is written, before the thread
    begins anything else, so what a listener submits there needs no wait. A listener must be quick.
    What it raises is logged and ends nothing.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._listeners: tuple[Listener, ...] = ()
        self._faults = Throttled(logging.getLogger(__name__).error)

    def listen(self, listener: Listener, first: bool = False) -> None:
        """Call it with every handle from now on, once. first: before all other listeners."""
        with self._lock:
            others = tuple(known for known in self._listeners if known != listener)
            self._listeners = (listener, *others) if first else (*others, listener)

    def unlisten(self, listener: Listener) -> None:
        """Call it no more; a call that is in progress has ended when this returns."""
        with self._lock:
            self._listeners = tuple(known for known in self._listeners if known != listener)

    def give(self, handle: KvHandle) -> None:
        """Hand a frame to all listeners."""
        with self._lock:
            for listener in self._listeners:
                try:
                    listener(handle)
                except Exception as error:  # of one reader; the others still get the frame
                    text = f'a reader of frames failed\n{trace(error)}'
                    self._faults(type(error).__name__, text)
