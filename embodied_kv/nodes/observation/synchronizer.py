"""Images and joint positions that belong to one moment.

Knows stamps (ns, the world's clock) and moments of reception (s, the steady clock): stamps say
what belongs together, reception says who is alive. Does not know messages, an image is what was
put in; it stays in `nodes` because nothing else pairs topics.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

HISTORY = 512  # joint positions that are kept, to find those of an image that took its time


class Stamped(NamedTuple):
    stamp: int
    received: float
    value: object


@dataclass(frozen=True, eq=False)
class SyncedMoment:
    """images: one per view, None for a view that is missing. stamp: of the newest image."""

    images: tuple[object | None, ...]
    positions: np.ndarray
    stamp: int
    received: float


class Synchronizer:
    """Keeps the newest of each view, and gives out each moment once.

    views: names, in order. tolerance: s that stamps of one moment may lie apart.
    timeout: s without an image after which a view is missing.
    waits: why the last look at what is new found no moment, '' if it did.
    """

    def __init__(self, views: Sequence[str], tolerance: float, timeout: float) -> None:
        self.views, self.tolerance, self.timeout = tuple(views), tolerance, timeout
        self.restart(0.0)

    def restart(self, now: float) -> None:
        """Forget everything; every view has `timeout` from now on to show up."""
        self._images: dict[str, Stamped] = {}
        self._latest: dict[str, int] = {}  # stamp of the newest image of each view
        self._alive = dict.fromkeys(self.views, now)
        self._positions: deque[Stamped] = deque(maxlen=HISTORY)
        self._given = -1
        self.waits = 'nothing has arrived'

    def image(self, view: str, stamp: int, received: float, image: object) -> bool:
        """Stores a view's newest image. False if its stamp lies before that of the last one.

        Then time has been set back (a reset, a recording that begins again), and whatever is
        stored from a later time is dropped.
        """
        backwards = stamp < self._latest.get(view, stamp)
        if backwards:
            self._drop_after(stamp + self._nanoseconds(self.tolerance))
        self._latest[view], self._alive[view] = stamp, received
        self._images[view] = Stamped(stamp, received, image)
        return not backwards

    def joints(self, stamp: int, received: float, positions: np.ndarray) -> None:
        """Stores joint positions."""
        while self._positions and self._positions[-1].stamp > stamp:
            self._positions.pop()
        self._positions.append(Stamped(stamp, received, positions))

    def look(self, now: float) -> tuple[str, ...]:
        """The views whose camera sends nothing."""
        missing = tuple(v for v in self.views if now - self._alive[v] > self.timeout)
        if len(missing) == len(self.views):
            self.waits = f'no camera is alive: {", ".join(self.views)}'
        return missing

    def newest(self, now: float) -> SyncedMoment | None:
        """The newest moment that has not been given out."""
        moment = self._newest(now)
        if moment is not None:
            self._given, self.waits = moment.stamp, ''
        return moment

    def _newest(self, now: float) -> SyncedMoment | None:
        missing = self.look(now)
        there = [v for v in self.views if v not in missing]
        if not there:
            return None
        if late := [v for v in there if v not in self._images]:
            self.waits = f'no image yet from {", ".join(late)}'
            return None
        images = {v: self._images[v] for v in there}
        oldest = min(images.values(), key=lambda image: image.stamp)
        newest = max(images.values(), key=lambda image: image.stamp)
        if newest.stamp - oldest.stamp > self._nanoseconds(self.tolerance):
            self.waits = (
                f'images of {", ".join(there)} lie {(newest.stamp - oldest.stamp) / 1e6:.0f} ms '
                f'apart, tolerance is {self.tolerance * 1e3:.0f} ms'
            )
            return None
        if newest.stamp <= self._given:
            return None  # seen already: the next one will come
        positions = self._nearest(newest.stamp)
        if positions is None:
            return None
        values = tuple(images[v].value if v in images else None for v in self.views)
        return SyncedMoment(values, positions, newest.stamp, newest.received)

    def _nearest(self, stamp: int) -> np.ndarray | None:
        if not self._positions:
            self.waits = 'no joint positions yet'
            return None
        nearest = min(reversed(self._positions), key=lambda known: abs(known.stamp - stamp))
        apart = abs(nearest.stamp - stamp)
        if apart > self._nanoseconds(self.tolerance):
            self.waits = (
                f'the nearest joint positions lie {apart / 1e6:.0f} ms from the images, tolerance '
                f'is {self.tolerance * 1e3:.0f} ms'
            )
            return None
        return nearest.value

    def _drop_after(self, stamp: int) -> None:
        self._images = {v: image for v, image in self._images.items() if image.stamp <= stamp}
        while self._positions and self._positions[-1].stamp > stamp:
            self._positions.pop()
        self._given = -1

    @staticmethod
    def _nanoseconds(seconds: float) -> int:
        return round(seconds * 1e9)
