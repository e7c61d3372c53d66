"""Images and a state that belong to one moment.

Knows stamps (ns, ROS clock), which say what belongs together, and moments (s, the world's clock,
see `clock`), which say who is alive and what is recent. Does not know messages, an image is what
was put in; it stays in `nodes` because nothing else pairs topics.

A moment is made when its last image arrives: of that one, and of each other view's image nearest
to it. It is not made if a much better one is on its way: if, as fast as the view with the oldest
of these images sends, its next one would halve the time between them. So cameras that see at once
are never mixed with the picture before, and cameras that run freely lose no moment.

Laws: images of one moment lie within the tolerance, and none is older than `max_age`. Moments are
given once, each newer than the last. No image of a view is older than one that was given. Without
a living view that was described, or a required one, nothing is given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from embodied_kv.nodes.observation.description import ViewInput
from embodied_kv.nodes.observation.joint_merger import JointSample, StateUnknown

QUEUE = 16  # images of a view that wait for those of slower ones: half a second at 30 Hz
INTERVALS = 8  # between images of a view, by which its next one is expected
SET_BACK = 0.5  # s that stamps jump back where time was set back; less is an image that comes late


class States(Protocol):
    """What a robot's joints said: `JointStates`, or a stand-in."""

    def at(self, stamp: int) -> JointSample:
        """The state of this moment. Raises StateUnknown."""

    def awaits(self, stamp: int) -> bool:
        """Whether a nearer one is about to arrive."""

    def drop_after(self, stamp: int) -> None:
        """Time was set back."""


class Stamped(NamedTuple):
    """An image. stamp: ns, ROS clock. taken, received: s, the world's clock."""

    stamp: int
    taken: float
    received: float
    value: object


@dataclass(frozen=True, eq=False)
class SyncedMoment:
    """images: one per view, None for a view that is missing. stamp, taken: of the newest image."""

    images: tuple[object | None, ...]
    state: JointSample
    stamp: int
    taken: float
    received: float


class _View:
    """Images of a view that may still become part of a moment, and how fast they come."""

    def __init__(self, view: ViewInput, now: float) -> None:
        self.name, self.required = view.name, view.required
        self.heard = now
        self.images: deque[Stamped] = deque(maxlen=QUEUE)
        self.stamps: deque[int] = deque(maxlen=INTERVALS + 1)

    def add(self, image: Stamped) -> None:
        self.images.append(image)
        self.stamps.append(image.stamp)

    def nearest(self, stamp: int) -> Stamped:
        return min(reversed(self.images), key=lambda image: abs(image.stamp - stamp))

    def interval(self) -> int | None:
        """ns between two images, as a rule; None before the second one."""
        stamps = list(self.stamps)
        if len(stamps) < 2:
            return None
        intervals = sorted(b - a for a, b in zip(stamps, stamps[1:], strict=False))
        return intervals[len(intervals) // 2]

    def drop_before(self, stamp: int) -> None:
        while self.images and self.images[0].stamp < stamp:
            self.images.popleft()

    def drop_after(self, stamp: int) -> None:
        while self.images and self.images[-1].stamp > stamp:
            self.images.pop()
        self.stamps.clear()


class Synchronizer:
    """Keeps the newest images of each view, and gives out each moment once.

    views: in order. joints: gives the state of a moment. tolerance: s that stamps of one moment
    may lie apart. timeout: s without an image after which a view is missing. max_age: s since an
    image was taken, after which it is of no use. waits: why the last look at what is new found no
    moment, '' if it did.
    """

    def __init__(
        self,
        views: Sequence[ViewInput],
        joints: States,
        tolerance: float,
        timeout: float,
        max_age: float,
    ) -> None:
        self._described, self._joints = tuple(views), joints
        self._tolerance, self._timeout, self._max_age = round(tolerance * 1e9), timeout, max_age
        self.restart(0.0)

    def restart(self, now: float) -> None:
        """Forget all images; every view has `timeout` from now on to show up."""
        self._views = {view.name: _View(view, now) for view in self._described}
        self._arrived: Stamped | None = None
        self._given = -1
        self.waits = 'nothing has arrived'

    def image(self, name: str, image: Stamped) -> bool:
        """Stores a view's newest image. False where its stamp says that time was set back.

        That is a reset, or a recording that begins again: what is of a later time is dropped.
        An image that is a little late, one of a later time has arrived, is passed over.
        """
        view = self._views[name]
        view.heard = image.received
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

    def look(self, now: float) -> tuple[str, ...]:
        """The views whose camera sends nothing."""
        views = self._views.values()
        missing = tuple(view.name for view in views if now - view.heard > self._timeout)
        required = [name for name in missing if self._views[name].required]
        if required:
            self.waits = f'no image from {", ".join(required)}, which is required'
        elif len(missing) == len(views):
            self.waits = f'no camera is alive: {", ".join(missing)}'
        return missing

    def newest(self, now: float) -> SyncedMoment | None:
        """The moment that the image that came last completes, if it was not given yet."""
        missing = self.look(now)
        views = [view for view in self._views.values() if view.name not in missing]
        if not views or any(self._views[name].required for name in missing):
            return None
        if late := [view.name for view in views if not view.images]:
            self.waits = f'no image yet from {", ".join(late)}'
            return None
        if self._arrived is None:
            return None
        images = {view.name: view.nearest(self._arrived.stamp) for view in views}
        newest = max(images.values(), key=lambda image: image.stamp)
        if newest.stamp <= self._given or not self._fit(images, now):
            return None
        if self._joints.awaits(newest.stamp):
            return None
        try:
            state = self._joints.at(newest.stamp)
        except StateUnknown as unknown:
            self.waits = unknown.args[0]
            return None
        for name, image in images.items():
            self._views[name].drop_before(image.stamp)
        self._given, self.waits = newest.stamp, ''
        values = tuple(images[v].value if v in images else None for v in self._views)
        return SyncedMoment(values, state, newest.stamp, newest.taken, newest.received)

    def _fit(self, images: dict[str, Stamped], now: float) -> bool:
        """Whether these images may be one moment, and none is on its way that makes it better."""
        oldest = min(images, key=lambda name: images[name].stamp)
        apart = _apart(images.values())
        expected = self._apart_if_waiting(images, oldest)
        if expected * 2 < apart and expected <= self._tolerance:
            return False
        if apart > self._tolerance:
            self.waits = (
                f'images of {", ".join(images)} lie {apart / 1e6:.0f} ms apart, sync_tolerance is '
                f'{self._tolerance / 1e6:.0f} ms'
            )
            return False
        first = min(images, key=lambda name: images[name].taken)
        age = now - images[first].taken
        if age > self._max_age:
            self.waits = f'the image of {first} is {age:.1f} s old'
        return age <= self._max_age

    def _apart_if_waiting(self, images: dict[str, Stamped], oldest: str) -> int:
        """ns between the images of the moment with the next image of the oldest one's view.

        As they are now, where that view has sent its next one, or nobody knows when it will.
        """
        apart, view = _apart(images.values()), self._views[oldest]
        interval = view.interval() or max(v.interval() or 0 for v in self._views.values())
        if images[oldest] is not view.images[-1] or not interval:
            return apart
        coming = images[oldest]._replace(stamp=images[oldest].stamp + interval)
        return _apart((images | {oldest: coming}).values())

    def _drop_outrun(self) -> None:
        """What lies too far before the newest image of every view has no moment to come."""
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
