"""What a recording says of each moment: joints, commands, words, who moved the arm, pictures.

Knows the robot's topics. Does not know episodes. Moments are ns on the ROS clock: of what was
observed the stamp of its message, of what was said or commanded when it came. Pictures are named
by their place in the file and read when they are needed.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from embodied_kv.data.recording_reader import RecordedMessage, Recording
from embodied_kv.robots.channels import COMPRESSED, JOINT_STATE, pose_values
from embodied_kv.robots.contract import Contract
from embodied_kv.robots.units import unwrapped

FRESH, PREVIOUS, HOLD, STOP = range(4)  # sources of an ActionChunk
ARMED, TAKEN_OVER = 1, 3  # states of a ControlState
SECOND = 1_000_000_000  # ns


@dataclass
class Series:
    """Values in the order of their moments, which never go back.

    late: so many came that were from before the last one, and are left out.
    """

    stamps: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    late: int = 0

    def add(self, stamp: int, value: object) -> None:
        """The next one."""
        if self.stamps and stamp < self.stamps[-1]:
            self.late += 1
            return
        self.stamps.append(stamp)
        self.values.append(value)

    def last(self, at: int) -> int | None:
        """The place of the newest value that is no later."""
        place = bisect_right(self.stamps, at) - 1
        return None if place < 0 else place

    def forget(self, at: int) -> None:
        """Drop the values that are older than the newest one of a moment."""
        if place := self.last(at):
            del self.stamps[:place], self.values[:place]


@dataclass(frozen=True, eq=False)
class Commanded:
    """An ActionChunk as it was executed. values: SI, float64 [actions, axes].

    start: the moment of action 0, ns; dt: s. last: the last action that may be executed.
    """

    source: int
    start: int
    dt: float
    last: int
    values: np.ndarray

    def at(self, moment: int, steps: np.ndarray) -> np.ndarray:
        """What was commanded then, [axes]; steps: which of them keep their value for a period."""
        place = float(np.clip((moment - self.start) / SECOND / self.dt, 0, self.last))
        lower = int(place)
        upper = min(lower + 1, self.last)
        between = self.values[lower] + (place - lower) * (self.values[upper] - self.values[lower])
        return np.where(steps, self.values[lower], between)


@dataclass(frozen=True)
class Control:
    """Who moved the arm. state: as of ControlState."""

    state: int
    shadow: bool


class Signals:
    """All of an unbroken piece of a recording but the pixels, as far as it has been read.

    positions, velocities: by joint, or by what is selected of a pose. images: by view, places in
    the file among the pictures of it.

    Args:
        recording: The recording that contains the piece.
        coming: Messages of the recording from the first one of the piece.
        pictures_before: Number of pictures of the earlier pieces, by view.
    """

    def __init__(
        self,
        recording: Recording,
        coming: Iterator[RecordedMessage],
        pictures_before: Mapping[str, int],
    ) -> None:
        self.recording, contract = recording, recording.contract
        self._coming, self._latest = coming, 0
        self.beyond: RecordedMessage | None = None  # the first message of the next piece
        self.positions: dict[str, Series] = {}
        self.velocities: dict[str, Series] = {}
        self.images = {view: Series() for view in contract.views}
        self.instruction, self.control, self.commands = Series(), Series(), Series()
        self._views = picture_topics(contract)
        self._joints = _joint_topics(contract)
        self._continuous = {name for name, of in contract.limits.items() if of.continuous}
        self._turned: dict[str, float] = {}  # the last finite position of each continuous joint
        self.pictures_seen = dict(pictures_before)

    @property
    def period(self) -> float:
        """s between two commands while the arm moves."""
        return 1 / float(self.recording.start['rate'])

    def all_series(self) -> dict[str, Series]:
        """By what they tell of."""
        own = ('instruction', 'control', 'commands')
        return (
            {name: getattr(self, name) for name in own}
            | {f'view {view}': series for view, series in self.images.items()}
            | {f'position {name}': series for name, series in self.positions.items()}
            | {f'velocity {name}': series for name, series in self.velocities.items()}
        )

    def read(self) -> Iterator[int]:
        """Take the messages that are left of the piece; yield when each of them came, ns."""
        while self.beyond is None and (message := next(self._coming, None)) is not None:
            if message.stamp < self._latest:
                self.beyond = message
                return
            self._latest = message.stamp
            self._take(message)
            yield message.stamp

    def forget(self, at: int) -> None:
        """Drop what no moment from `at` on needs."""
        for series in self.all_series().values():
            series.forget(at)

    def _take(self, message: RecordedMessage) -> None:
        topic, stamp = message.topic, message.stamp
        if topic in self._views:
            at = _observed(message.read(), stamp)
            for view in self._views[topic]:
                self.images[view].add(at, self.pictures_seen[view])
                self.pictures_seen[view] += 1
        elif topic in self._joints:
            self._take_joints(message.read(), stamp, is_pose=self._joints[topic] != JOINT_STATE)
        elif topic == 'instruction':
            self.instruction.add(stamp, message.read().data.strip())
        elif topic == 'control/state':
            read = message.read()
            self.control.add(_observed(read, stamp), Control(read.state, read.shadow))
        elif topic == 'action_chunk':
            read = message.read()
            at = _published(read, stamp)
            self.commands.add(at, _commanded(read, stamp, at))

    def _take_joints(self, read: Any, stamp: int, is_pose: bool) -> None:
        names, positions, velocities = (
            pose_values(read) if is_pose else (read.name, read.position, read.velocity)
        )
        at = _observed(read, stamp)
        positions = list(map(self._unwrapped, names, positions))
        for known, told in ((self.positions, positions), (self.velocities, velocities)):
            for name, value in zip(names, told, strict=False):  # velocities may be absent
                known.setdefault(name, Series()).add(at, value)

    def _unwrapped(self, name: str, position: float) -> float:
        """Return the position, of a continuous joint within pi of its last finite one."""
        if name not in self._continuous or not math.isfinite(position):
            return position
        self._turned[name] = unwrapped(position, self._turned.get(name, position))
        return self._turned[name]


def unbroken(recording: Recording) -> Iterator[Signals]:
    """Yield the pieces of a recording between which its clock was set back, nearly always one.

    What was told and who moved the arm stay in force from one to the next. A piece is read by
    `Signals.read`; what the caller leaves of it is read before the next piece.
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
        signals = Signals(recording, chain([first], coming), before.pictures_seen)
        for old, new in (
            (before.instruction, signals.instruction),
            (before.control, signals.control),
        ):
            if old.values:
                new.add(first.stamp, old.values[-1])


def recorded_images(recording: Recording) -> Iterator[tuple[str, int, RecordedMessage]]:
    """Yield views, places and messages of all pictures, in the order of the file."""
    topics = picture_topics(recording.contract)
    places = dict.fromkeys(recording.contract.views, 0)
    for message in recording.messages():
        for view in topics.get(message.topic, ()):
            yield view, places[view], message
            places[view] += 1


def picture_topics(contract: Contract) -> dict[str, list[str]]:
    """The views of each topic of pictures, as the recorder keeps these."""
    topics: dict[str, list[str]] = {}
    for name, view in contract.views.items():
        topics.setdefault(view.channel.topic, []).append(name)
        if view.channel.type != COMPRESSED:
            topics.setdefault(f'{view.channel.topic}/compressed', []).append(name)
    return topics


def newest(series: Mapping[str, Series], at: int, most: int) -> dict[str, float]:
    """Of each name the newest value at a moment, where it is no older than `most` ns."""
    found = {}
    for name, known in series.items():
        place = known.last(at)
        if place is not None and at - known.stamps[place] <= most:
            found[name] = known.values[place]
    return found


def _joint_topics(contract: Contract) -> dict[str, str]:
    """The message type of each topic that tells of joints."""
    return dict.fromkeys(contract.feedback, JOINT_STATE) | {
        source.channel.topic: source.channel.type for source in contract.state
    }


def _observed(read: Any, came: int) -> int:
    """When what a message tells was so; a driver that stamps nothing is believed to be at once."""
    stamp = read.header.stamp
    return stamp.sec * SECOND + stamp.nanosec or came


def _published(read: Any, came: int) -> int:
    """When a chunk was: where it tells its age, however late the recorder heard of it."""
    published = _observed(read, came)
    if read.source in (FRESH, PREVIOUS):
        if not math.isfinite(read.age):
            return came
        published += round(read.age * SECOND)
    return min(published, came)


def _commanded(read: Any, came: int, published: int) -> Commanded:
    """Action `first` was not yet due when the chunk was published.

    So it is due by its stamp or, where the arm stood meanwhile, when it was published.
    """
    rows = read.chunk_size
    values = np.array(read.values, np.float64).reshape(rows, -1) if rows else np.zeros((0, 0))
    start = _observed(read, came)
    due = start + round(read.first * read.dt * SECOND)
    last = max(0, min(read.execution_horizon, rows) - 1)
    begins = start + max(0, published - due)
    return Commanded(read.source, begins, read.dt or 1.0, last, values)
