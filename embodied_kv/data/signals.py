"""The signals of a recording: joint states, commands, instructions, control states, images.

Moments are ns on the ROS clock: the stamp of an observation, or the arrival of an instruction or
command. Images are represented by their place in the file and read when they are needed.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from embodied_kv.data.recording_reader import MessageSource, RecordedMessage
from embodied_kv.robots.channels import COMPRESSED, JOINT_STATE, pose_values, selects_velocity
from embodied_kv.robots.contract import Contract
from embodied_kv.robots.sources import limited
from embodied_kv.robots.units import unwrapped

FRESH, PREVIOUS, HOLD, STOP = range(4)  # sources of an ActionChunk
ARMED, TAKEN_OVER = 1, 3  # states of a ControlState
SECOND = 1_000_000_000  # ns
AHEAD = 5 * SECOND  # ns: stamps further ahead of their arrival are wrong


@dataclass
class Series:
    """Values in the order of their moments.

    late, early: numbers of ignored values, older than the last one or from the future.
    """

    stamps: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    late: int = 0
    early: int = 0

    def add(self, stamp: int, value: object) -> None:
        """Append a value, unless it is older than the last one."""
        if self.stamps and stamp < self.stamps[-1]:
            self.late += 1
            return
        self.stamps.append(stamp)
        self.values.append(value)

    def observe(self, stamp: int, came: int, value: object) -> None:
        """Append an observation that arrived at `came`, unless its stamp is wrong."""
        if stamp > came + AHEAD:
            self.early += 1
            return
        self.add(stamp, value)

    def last(self, at: int) -> int | None:
        """Return the place of the newest value that is not later than a moment."""
        place = bisect_right(self.stamps, at) - 1
        return None if place < 0 else place

    def forget(self, at: int) -> None:
        """Drop the values that are older than the newest one at a moment."""
        if place := self.last(at):
            del self.stamps[:place], self.values[:place]


@dataclass(frozen=True, eq=False)
class Commanded:
    """An ActionChunk as executed. values: SI, float64 [actions, axes].

    start: time of action 0 (ns). dt: s. last: number of the last action that may be executed.
    """

    source: int
    start: int
    dt: float
    last: int
    values: np.ndarray

    def at(self, moment: int, steps: np.ndarray) -> np.ndarray:
        """Return the command at a moment, [axes]. steps: axes that keep a value for a period."""
        place = float(np.clip((moment - self.start) / SECOND / self.dt, 0, self.last))
        lower = int(place)
        upper = min(lower + 1, self.last)
        between = self.values[lower] + (place - lower) * (self.values[upper] - self.values[lower])
        return np.where(steps, self.values[lower], between)


@dataclass(frozen=True)
class Control:
    """A ControlState message."""

    state: int
    shadow: bool


class Signals:
    """The signals of an unbroken piece of a recording, as far as it has been read.

    positions, velocities: by joint, or by selection of a pose. names: all that messages named.
    images: by view, places among its images in the file.

    Args:
        recording: The recording that contains the piece.
        coming: Messages of the recording from the first one of the piece.
        images_before: Number of images of the earlier pieces, by view.
    """

    def __init__(
        self,
        recording: MessageSource,
        coming: Iterator[RecordedMessage],
        images_before: Mapping[str, int],
    ) -> None:
        self.recording, contract = recording, recording.contract
        self._coming, self._latest = coming, 0
        self.beyond: RecordedMessage | None = None  # the first message of the next piece
        self.positions: dict[str, Series] = {}
        self.velocities: dict[str, Series] = {}
        self.names: dict[str, None] = {}
        self.images = {view: Series() for view in contract.views}
        self.instruction, self.control, self.commands = Series(), Series(), Series()
        self._views = picture_topics(contract)
        self._joints = _joint_topics(contract)
        self._continuous = {name for name, of in contract.limits.items() if of.continuous}
        self._turned: dict[str, float] = {}  # the last finite position of each continuous joint
        self.images_seen = dict(images_before)

    def all_series(self) -> dict[str, Series]:
        own = ('instruction', 'control', 'commands')
        return (
            {name: getattr(self, name) for name in own}
            | {f'view {view}': series for view, series in self.images.items()}
            | {f'position {name}': series for name, series in self.positions.items()}
            | {f'velocity {name}': series for name, series in self.velocities.items()}
        )

    def read(self) -> Iterator[int]:
        """Read the remaining messages of the piece; yield the arrival of each (ns)."""
        while self.beyond is None and (message := next(self._coming, None)) is not None:
            if message.stamp < self._latest:
                self.beyond = message
                return
            self._latest = message.stamp
            self._take(message)
            yield message.stamp

    def task(self, at: int) -> str:
        """Return the instruction at a moment, '' for none."""
        place = self.instruction.last(at)
        return '' if place is None else self.instruction.values[place]

    def episode(self, at: int) -> int | None:
        """Return the number of the marked episode at a moment: 0, as recordings have no marks."""
        return 0

    def forget(self, at: int) -> None:
        """Drop values that no moment from `at` on needs."""
        for series in self.all_series().values():
            series.forget(at)

    def _take(self, message: RecordedMessage) -> None:
        topic, stamp = message.topic, message.stamp
        if topic in self._views:
            at = _observed(message.read(), stamp)
            for view in self._views[topic]:
                self.images[view].observe(at, stamp, self.images_seen[view])
                self.images_seen[view] += 1
        elif topic in self._joints:
            self._take_joints(message.read(), stamp, self._joints[topic])
        elif topic == 'instruction':
            self.instruction.add(stamp, message.read().data.strip())
        elif topic == 'control/state':
            read = message.read()
            self.control.add(_observed(read, stamp), Control(read.state, read.shadow))
        elif topic == 'action_chunk':
            read = message.read()
            at = _published(read, stamp)
            self.commands.add(at, _commanded(read, stamp, at))

    def _take_joints(self, read: Any, stamp: int, wanted: _Joints) -> None:
        """Take the wanted joints of a message; another topic may publish the others better."""
        names, positions, velocities = (
            (read.name, read.position, read.velocity)
            if wanted.type == JOINT_STATE
            else pose_values(read)
        )
        self.names |= dict.fromkeys(names)
        at = _observed(read, stamp)
        for known, among, values in (
            (self.positions, wanted.positions, positions),
            (self.velocities, wanted.velocities, velocities),
        ):
            for name, value in zip(names, values, strict=False):  # velocities may be absent
                if name in among:
                    turned = self._unwrapped(name, value) if known is self.positions else value
                    known.setdefault(name, Series()).observe(at, stamp, turned)

    def _unwrapped(self, name: str, position: float) -> float:
        """Return the position, of a continuous joint within pi of its last finite one."""
        if name not in self._continuous or not math.isfinite(position):
            return position
        self._turned[name] = unwrapped(position, self._turned.get(name, position))
        return self._turned[name]


def unbroken(recording: MessageSource) -> Iterator[Signals]:
    """Yield the pieces of a recording, split where its clock was set back; nearly always one.

    The instruction and the control state stay in force in the next piece. `Signals.read` reads a
    piece; what the caller does not read is read before the next piece.
    """
    views, coming = recording.contract.views, recording.messages()
    signals = Signals(recording, coming, dict.fromkeys(views, 0))
    while True:
        yield signals
        for _ in signals.read():
            pass
        if signals.beyond is None:
            return
        before, first = signals, signals.beyond
        signals = Signals(recording, chain([first], coming), before.images_seen)
        for old, new in (
            (before.instruction, signals.instruction),
            (before.control, signals.control),
        ):
            if old.values:
                new.add(first.stamp, old.values[-1])


def recorded_images(recording: MessageSource) -> Iterator[tuple[str, int, RecordedMessage]]:
    """Yield views, places and messages of all images, in the order of the file."""
    topics = picture_topics(recording.contract)
    places = dict.fromkeys(recording.contract.views, 0)
    for message in recording.messages():
        for view in topics.get(message.topic, ()):
            yield view, places[view], message
            places[view] += 1


def picture_topics(contract: Contract) -> dict[str, list[str]]:
    """Return the views of each topic of images, as recorded."""
    topics: dict[str, list[str]] = {}
    for name, view in contract.views.items():
        topics.setdefault(view.channel.topic, []).append(name)
        if view.channel.type != COMPRESSED:
            topics.setdefault(f'{view.channel.topic}/compressed', []).append(name)
    return topics


def newest(series: Mapping[str, Series], at: int, most: int) -> dict[str, float]:
    """Return the newest values at a moment that are at most `most` ns old, by name."""
    found = {}
    for name, known in series.items():
        place = known.last(at)
        if place is not None and at - known.stamps[place] <= most:
            found[name] = known.values[place]
    return found


@dataclass
class _Joints:
    """What is read of a topic: names of joints, or selections of a pose."""

    type: str
    positions: set[str] = field(default_factory=set)
    velocities: set[str] = field(default_factory=set)


def _joint_topics(contract: Contract) -> dict[str, _Joints]:
    """Return what is read of each topic of joint positions, as a robot reads it."""
    topics = {source.channel.topic: _Joints(source.channel.type) for source in contract.state}
    for source in contract.state:
        wanted = topics[source.channel.topic]
        for select in source.select:
            of = wanted.velocities if selects_velocity(select) else wanted.positions
            of.add(limited(select))
    for joint, topic in contract.measured.items():
        topics.setdefault(topic, _Joints(JOINT_STATE)).positions.add(joint)
    return topics


def _observed(read: Any, came: int) -> int:
    """Return the stamp of a message, or its arrival if the driver leaves the stamp empty."""
    stamp = read.header.stamp
    return stamp.sec * SECOND + stamp.nanosec or came


def _published(read: Any, came: int) -> int:
    """Return when a chunk was published: by its age if it has one, else by its arrival."""
    published = _observed(read, came)
    if read.source in (FRESH, PREVIOUS):
        if not math.isfinite(read.age):
            return came
        published += round(read.age * SECOND)
    return min(published, came)


def _commanded(read: Any, came: int, published: int) -> Commanded:
    """Return a chunk as executed.

    Action `first` is due by its stamp or, if the arm stood in between, when it was published.
    """
    rows = read.chunk_size
    values = np.array(read.values, np.float64).reshape(rows, -1) if rows else np.zeros((0, 0))
    start = _observed(read, came)
    due = start + round(read.first * read.dt * SECOND)
    last = max(0, min(read.execution_horizon, rows) - 1)
    begins = start + max(0, published - due)
    return Commanded(read.source, begins, read.dt or 1.0, last, values)
