"""What a robot sees and feels now, also one that has nothing to do.

Of a robot without an instruction no frame is made, but while somebody watches. Knows who watches.
Does not know cameras: whoever makes frames looks here whether they are wanted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from embodied_kv.capsule.reentry import SceneSummary
from embodied_kv.session.participant import Participant

PATIENCE = 2.0  # s for a frame
LOOK = 0.02  # s between two looks whether there is one


class Sight:
    """The present scene, from what makes frames. Threads: any.

    observers: have the newest scene, and state whether frames are made while it is watched.
    """

    def __init__(self, observers: Participant) -> None:
        self._observers, self._watchers, self._lock = observers, 0, threading.Lock()

    @property
    def is_open(self) -> bool:
        """Return whether there is a scene to wait for."""
        return self._observers.makes_frames

    @property
    def is_watched(self) -> bool:
        """Whether frames are wanted that nobody acts upon."""
        return self._watchers > 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Meanwhile frames are made, whatever the robot has to do."""
        with self._lock:
            self._watchers += 1
        try:
            yield
        finally:
            with self._lock:
                self._watchers -= 1

    def now(
        self, check: Callable[[], None] = lambda: None, newer: bool = False
    ) -> SceneSummary | None:
        """Return the present scene, None where there is none; wait for it up to PATIENCE.

        Without a node that makes frames there is nothing to wait for.

        Args:
            check: Called while it waits; what it raises ends the waiting.
            newer: Wait for a scene that is newer than the newest one at the call, so that
                nothing is answered from a scene of before; after PATIENCE the newest one counts.
        """
        with self.watching():
            look, until = self._observers.scene, time.monotonic() + PATIENCE
            before = look() if newer else None
            while (scene := look()) is None or (before and scene.stamp == before.stamp):
                if not self.is_open or time.monotonic() > until:
                    break
                check()
                time.sleep(LOOK)
        return scene
