"""Combine images and a state that belong to one moment.

Stamps (ns, ROS clock) decide which images belong together. Moments (s, the world's clock, see
`clock`) decide which views are alive and which images are recent.

A synchronized moment consists of the image that arrived last and of the nearest image of each
other view. It is delayed if the next image of the view with the oldest image is expected, at the
usual rate of that view, to more than halve the time between the images. So images of synchronized
cameras are never mixed with earlier ones, and free-running cameras lose no moment.

Invariants: images of one moment lie within the tolerance, and none is older than `max_age`. Each
moment is returned once and is newer than the last one. No image of a view is older than one that
was returned. If no camera, or not every required one, sends images, there is no moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from embodied_kv.nodes.observation.joint_merger import JointSample, UnknownStateError
from embodied_kv.robots.sources import View

if TYPE_CHECKING:
    from embodied_kv.nodes.observation.joint_states import JointStates

QUEUE = 16  # images of a view that wait for those of slower ones: half a second at 30 Hz
INTERVALS = 8  # intervals between images of a view that predict its next one
SET_BACK = 0.5  # s; stamps that jump back further show that time was set back


class Stamped(NamedTuple):
    """An image. stamp: ns, ROS clock. taken, received: s, the world's clock."""

    stamp: int
    taken: float
    received: float
    value: object


@dataclass(frozen=True, eq=False)
class SyncedMoment:
    """Images, one per view or None for a missing view, and a state of one moment.

    stamp, taken, received: those of the newest image.
    """

    images: tuple[object | None, ...]
    state: JointSample
    stamp: int
    taken: float
    received: float


class _View:
    """Images of a view that may still become part of a moment, and their rate."""

    def __init__(self, required: bool, now: float) -> None:
        self.required, self.received = required, now
        self.images: deque[Stamped] = deque(maxlen=QUEUE)
        self.stamps: deque[int] = deque(maxlen=INTERVALS + 1)

    def add(self, image: Stamped) -> None:
        self.images.append(image)
        self.stamps.append(image.stamp)

    def nearest(self, stamp: int) -> Stamped:
        return min(reversed(self.images), key=lambda image: abs(image.stamp - stamp))

    def interval(self) -> int | None:
        """Return the median time (ns) between two images; None before the second one."""
        intervals = sorted(b - a for a, b in pairwise(self.stamps))
        return intervals[len(intervals) // 2] if intervals else None

    def drop_before(self, stamp: int) -> None:
        while self.images and self.images[0].stamp < stamp:
            self.images.popleft()

    def drop_after(self, stamp: int) -> None:
        while self.images and self.images[-1].stamp > stamp:
            self.images.pop()
        self.stamps.clear()


class Synchronizer:
    """Keep the newest images of each view, and return each moment once.

    waits: why the last call of `newest` found no moment; '' if it found one.

    Args:
        views: The views by name, in order.
        joints: The joint states.
        tolerance: Largest time (s) between the stamps of one moment.
        timeout: Time (s) without an image after which a view is missing.
        max_age: Largest age (s) of an image.
    """

    def __init__(
        self,
        views: Mapping[str, View],
        joints: JointStates,
        tolerance: float,
        timeout: float,
        max_age: float,
    ) -> None:
        self._described, self._joints = views, joints
        self._tolerance, self._timeout, self._max_age = round(tolerance * 1e9), timeout, max_age
        self.restart(0.0)

    def restart(self, now: float) -> None:
        """Forget all images; each view is missing after `timeout` from now on."""
        self._views = {name: _View(v.required, now) for name, v in self._described.items()}
        self._arrived: Stamped | None = None
        self._given = -1
        self.waits = 'nothing has arrived'

    def image(self, name: str, image: Stamped) -> bool:
        """Store the newest image of a view; return False if its stamp shows that time went back.

        A reset or a recording that begins again sets time back; then later images are dropped. An
        image that is a little older than the previous one is ignored.
        """
        view = self._views[name]
        view.received = image.received
        back = view.stamps[-1] - image.stamp if view.stamps else 0
        is_set_back = back > SET_BACK * 1e9
        if is_set_back:
            self._drop_after(image.stamp + self._tolerance)
        elif back > 0:
            return True
        view.add(image)
        self._arrived = image
        self._drop_outrun()
        return not is_set_back

    def missing(self, now: float) -> tuple[str, ...]:
        """Return the views whose camera sends no images."""
        views = self._views.items()
        missing = tuple(name for name, v in views if now - v.received > self._timeout)
        if required := [name for name in missing if self._views[name].required]:
            self.waits = f'no image from {", ".join(required)}, which is required'
        elif len(missing) == len(views):
            self.waits = f'no camera is alive: {", ".join(missing)}'
        return missing

    def newest(self, now: float) -> SyncedMoment | None:
        """Return the newest moment; None if it was returned already or is not complete."""
        missing = self.missing(now)
        views = {name: view for name, view in self._views.items() if name not in missing}
        if not views or any(self._views[name].required for name in missing):
            return None
        if late := [name for name, view in views.items() if not view.images]:
            self.waits = f'no image yet from {", ".join(late)}'
            return None
        if self._arrived is None:
            return None
        images = {name: view.nearest(self._arrived.stamp) for name, view in views.items()}
        newest = max(images.values(), key=lambda image: image.stamp)
        if newest.stamp <= self._given or not self._fit(images, now):
            return None
        if self._joints.awaits(newest.stamp):
            return None
        try:
            state = self._joints.at(newest.stamp)
        except UnknownStateError as unknown:
            self.waits = unknown.args[0]
            return None
        for name, image in images.items():
            self._views[name].drop_before(image.stamp)
        self._given, self.waits = newest.stamp, ''
        values = tuple(images[v].value if v in images else None for v in self._views)
        return SyncedMoment(values, state, newest.stamp, newest.taken, newest.received)

    def _fit(self, images: dict[str, Stamped], now: float) -> bool:
        """Return whether images may form a moment, and no better image is about to arrive."""
        oldest = min(images, key=lambda name: images[name].stamp)
        apart = _apart(images.values())
        expected = self._apart_if_waiting(images, oldest)
        if expected * 2 < apart and expected <= self._tolerance:
            return False
        if apart > self._tolerance:
            self.waits = (
                f'images of {", ".join(images)} must lie within max_image_skew '
                f'{self._tolerance / 1e6:.0f} ms (got {apart / 1e6:.0f} ms)'
            )
            return False
        first = min(images, key=lambda name: images[name].taken)
        age = now - images[first].taken
        if age > self._max_age:
            self.waits = f'the image of {first} is {age:.1f} s old'
        return age <= self._max_age

    def _apart_if_waiting(self, images: dict[str, Stamped], oldest: str) -> int:
        """Return the time (ns) between the images with the expected image of the oldest view.

        If that image has arrived or cannot be predicted, return the present time between them.
        """
        apart, view = _apart(images.values()), self._views[oldest]
        interval = view.interval() or max(v.interval() or 0 for v in self._views.values())
        if images[oldest] is not view.images[-1] or not interval:
            return apart
        coming = images[oldest]._replace(stamp=images[oldest].stamp + interval)
        return _apart((images | {oldest: coming}).values())

    def _drop_outrun(self) -> None:
        """Drop images too far before the newest image of every view: no moment can use them."""
        reached = [view.images[-1].stamp for view in self._views.values() if view.images]
        for view in self._views.values():
            view.drop_before(min(reached) - self._tolerance)

    def _drop_after(self, stamp: int) -> None:
        for view in self._views.values():
            view.drop_after(stamp)
        self._joints.drop_after(stamp)
        self._given = -1


def _apart(images: Iterable[Stamped]) -> int:
    stamps = [image.stamp for image in images]
    return max(stamps) - min(stamps)
