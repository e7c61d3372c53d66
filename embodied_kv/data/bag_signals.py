"""The signals of a bag of another recorder: commands from the controllers' topics, and episodes.

A command is in force from its recording on. Positions and velocities stay in force until another
command on the same topic replaces them, at most `BagOptions.gap` after the newest command on any
topic. A trajectory is followed point by point.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied_kv.data.bag_options import SECOND, BagError
from embodied_kv.data.bag_reader import CHUNK, INSTRUCTION, Bag, BagMessage
from embodied_kv.data.episodes import Episode
from embodied_kv.data.recording_reader import MessageSource, RecordedMessage
from embodied_kv.data.signals import ARMED, FRESH, TAKEN_OVER, Control, Signals, unbroken
from embodied_kv.robots.channels import JOINT_STATE, MULTI_ARRAY, TRAJECTORY, TWIST
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.mapping import Output
from embodied_kv.text import listed, reason


@dataclass(frozen=True, eq=False)
class _Target:
    """A command of one controller. times [P]: s after start (ns). values [P, axes]: SI."""

    start: int
    times: np.ndarray
    values: np.ndarray

    def at(self, moment: int) -> np.ndarray:
        """Return the values at a moment (ns), interpolated; those of the nearest point outside."""
        if len(self.times) == 1:
            return self.values[0]
        passed = (moment - self.start) / SECOND
        return np.array([np.interp(passed, self.times, column) for column in self.values.T])


@dataclass(frozen=True, eq=False)
class _Command:
    """The commands of all controllers at one time, as `signals.Commanded`.

    values: one entry for each controller; () if one of them was stopped. index: for each
    controller, the indices of its values in the action.
    """

    values: tuple[_Target, ...]
    index: tuple[tuple[int, ...], ...]
    source: int = FRESH

    def at(self, moment: int, steps: np.ndarray) -> np.ndarray:
        """Return the command at a moment, [axes]."""
        found = np.full(len(steps), np.nan)
        for target, places in zip(self.values, self.index, strict=True):
            found[list(places)] = target.at(moment)
        return found


class BagSignals(Signals):
    """The signals of a bag, as far as it has been read. Raises BagError."""

    def __init__(self, bag: Bag) -> None:
        super().__init__(bag, bag.messages(), dict.fromkeys(bag.contract.views, 0))
        self._bag, self._robot = bag, Embodiment.of(bag.contract)
        outputs = self._robot.outputs if bag.is_commanded else ()
        self._outputs = {output.topic: output for output in outputs}
        self._targets: dict[str, _Target | None] = {}
        self._index = tuple(output.index for output in self._outputs.values())
        self._task_topic = bag.options.task_topic or INSTRUCTION
        self._starts = [bag.start + round(m.start * SECOND) for m in bag.marks or ()]
        self._ends = [bag.start + round(m.end * SECOND) for m in bag.marks or ()]
        self._running: object = None  # the data of the episode topic; None outside of episodes
        if bag.task:
            self.instruction.add(bag.start, bag.task)
        if not bag.has_control:
            state = TAKEN_OVER if bag.is_measured else ARMED
            self.control.add(bag.start, Control(state, shadow=False))

    def read(self) -> Iterator[int]:
        """Read the messages; yield the recording time (ns) of each. Check for absent joints."""
        yield from super().read()
        if self._running is not None:
            self._ends.append(self._latest + 1)
            self._running = None
        self._check_joints()

    def task(self, at: int) -> str:
        """Return the instruction of the listed episode, or the one in force."""
        mark = self.episode(at)
        listed_task = self._bag.marks[mark].task if self._bag.marks and mark is not None else ''
        return listed_task or super().task(at)

    def episode(self, at: int) -> int | None:
        """Return the number of the marked episode at a moment; 0 if nothing marks episodes."""
        if self._bag.marks is None and not self._bag.options.episode_topic:
            return 0
        place = bisect_right(self._starts, at) - 1
        if place < 0 or (place < len(self._ends) and at >= self._ends[place]):
            return None
        return place

    def check_marks(self, found: Sequence[Episode], least: float) -> None:
        """Check that each marked episode contains frames. Raises BagError.

        found: the episodes of the bag. least: length (s) below which the marks of a topic are
        skipped.
        """
        used = {episode.mark for episode in found}
        for place, (start, end) in enumerate(zip(self._starts, self._ends, strict=True)):
            is_short = self._bag.marks is None and end - start < least * SECOND
            if place not in used and not is_short:
                bag = self._bag
                where = bag.marks[place].line if bag.marks else bag.full(bag.options.episode_topic)
                raise BagError(
                    f'episode from {(start - bag.start) / SECOND:.2f} to {bag.when(end)} '
                    f'({where}) must have frames for {least:g} s (got none); list the episodes '
                    'to export with --episodes, or check which topic pauses there'
                )

    # ------------------------------------------------------------------ messages

    def _take(self, message: RecordedMessage) -> None:
        assert isinstance(message, BagMessage)
        try:
            if message.topic in self._outputs:
                self._take_command(self._outputs[message.topic], message)
            if message.topic == self._bag.options.episode_topic:
                self._take_mark(message.read().data, message.stamp)
            if message.topic in (self._task_topic, INSTRUCTION):
                if message.topic == self._task_topic and not self._bag.task:
                    self.instruction.add(message.stamp, message.read().data.strip())
            else:
                if message.topic == CHUNK:
                    self._check_order(message)
                super()._take(message)
        except BagError:
            raise
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise BagError(
                f'message of {message.full_topic} at {self._bag.when(message.stamp)} must have '
                f'the fields of its type (got {reason(error)}); record it again, or correct the '
                'contract'
            ) from error

    def _check_order(self, message: BagMessage) -> None:
        names, axes = tuple(message.read().joint_names), self._robot.axes
        if names != axes:
            raise BagError(
                f'joint_names of {message.full_topic} at {self._bag.when(message.stamp)} must be '
                f'{listed(axes)} (got {listed(names)}); use the contract of that robot'
            )

    def _take_mark(self, data: Any, stamp: int) -> None:
        is_none = data is False or data == '' or (isinstance(data, int | float) and data < 0)
        if not isinstance(data, bool | int | float | str):
            raise TypeError('data is neither a boolean, a number nor a string')
        running = None if is_none else data
        if running == self._running and type(running) is type(self._running):
            return
        if self._running is not None:
            self._ends.append(stamp)
        if running is not None:
            self._starts.append(stamp)
        self._running = running

    def _take_command(self, output: Output, message: BagMessage) -> None:
        read, stamp = message.read(), message.stamp
        where = f'{message.full_topic} at {self._bag.when(stamp)}'
        if output.type == TRAJECTORY:
            target = self._of_trajectory(output, read, stamp, where)
        else:
            values = _values(output, read, where)
            target = _Target(stamp, np.zeros(1), np.array([values], np.float64))
        self._targets[output.topic] = target
        if len(self._targets) == len(self._outputs):
            targets = tuple(self._targets[topic] for topic in self._outputs)
            known = tuple(target for target in targets if target is not None)
            values_ = known if len(known) == len(targets) else ()
            self.commands.add(stamp, _Command(values_, self._index))

    def _of_trajectory(self, output: Output, read: Any, stamp: int, where: str) -> _Target | None:
        """Return a JointTrajectory as a target; None for an empty one, which stops the arm."""
        if not read.points:
            return None
        places = _places(output, read.joint_names, f'joint_names of {where}')
        rows = [point.positions for point in read.points]
        if odd := [len(row) for row in rows if len(row) != len(read.joint_names)]:
            raise BagError(
                f'points of {where} must have {len(read.joint_names)} positions (got {odd[0]}); '
                'export the time without it with --episodes'
            )
        values = np.array(rows, np.float64)[:, places]
        for column, axis in enumerate(output.axes):
            if axis in self._continuous:
                values[:, column] = np.unwrap(values[:, column])
        times = np.array(
            [p.time_from_start.sec + p.time_from_start.nanosec / SECOND for p in read.points]
        )
        if (np.diff(times) <= 0).any():
            raise BagError(
                f'time_from_start of {where} must increase from point to point (got '
                f'{listed([f"{time:g}" for time in times])}); export the time without it with '
                '--episodes'
            )
        start = read.header.stamp.sec * SECOND + read.header.stamp.nanosec
        return _Target(start or stamp, times, values)

    def _check_joints(self) -> None:
        """Check that every joint of the state was measured. Raises BagError."""
        for dimension in self._robot.state.dimensions:
            known = self.velocities if dimension.is_velocity else self.positions
            if dimension.axis not in known:
                raise BagError(
                    f'{dimension.select} must be in a message of '
                    f'{self._bag.full(dimension.topic)} in {self._bag.path} (got '
                    f'{listed(list(self.names))}); correct select in the contract'
                )


def _values(output: Output, read: Any, where: str) -> Sequence[float]:
    """Return the numbers of a command that has one value for each axis."""
    if output.type == MULTI_ARRAY:
        if len(read.data) != len(output.axes):
            raise BagError(
                f'data of {where} must have {len(output.axes)} numbers, {listed(output.axes)} '
                f'(got {len(read.data)}); correct select in the contract'
            )
        return read.data
    if output.type == TWIST:
        if read.header.frame_id not in ('', output.frame):
            raise BagError(
                f'frame of {where} must be {output.frame} (got {read.header.frame_id}); correct '
                'frame in the contract'
            )
        twist = read.twist
        return [getattr(getattr(twist, a.split('.')[1]), a.split('.')[2]) for a in output.axes]
    assert output.type == JOINT_STATE
    places = _places(output, read.name, f'name of {where}')
    return [read.position[place] if place < len(read.position) else math.nan for place in places]


def _places(output: Output, names: Sequence[str], what: str) -> list[int]:
    """Return the indices of the controller's joints in the names of a message."""
    if missing := [axis for axis in output.axes if axis not in names]:
        raise BagError(
            f'{what} must contain {missing[0]} (got {listed(names)}); correct select of '
            f'{output.topic} in the contract'
        )
    return [names.index(axis) for axis in output.axes]


def pieces(recording: MessageSource) -> Iterator[Signals]:
    """Yield the pieces of a recording, split where its clock was set back; a bag has one."""
    if isinstance(recording, Bag):
        yield BagSignals(recording)
    else:
        yield from unbroken(recording)
