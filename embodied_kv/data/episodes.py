"""Divide a recording into episodes: images, state, instruction and action of each period.

An episode is an unbroken sequence of periods with one instruction. While an operator moves the
arm, there is no command; the action is the joint positions one period later.

A recording is read once, and a period is decided `PATIENCE` after it, so that only the signals of
the last `PATIENCE` are held, however long the recording is. A frame takes 8 bytes for each number
of its state and its action.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import numpy as np

from embodied_kv.data.signals import (
    ARMED,
    HOLD,
    SECOND,
    STOP,
    TAKEN_OVER,
    Commanded,
    Signals,
    newest,
)
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.mapping import Dimension
from embodied_kv.robots.sources import is_joint
from embodied_kv.robots.units import unwrapped

PATIENCE = 30 * SECOND  # ns from a moment until the last message about it
LASTS = 2  # control periods for which a command is in force if no other follows


@dataclass(frozen=True)
class Moment:
    """One period, in the policy's units. images: their places in the recording, by view.

    mark: number of the marked episode; 0 without marks.

    Continuous joints are unwrapped: an episode begins within (-pi, pi], and neither its state nor
    its actions jump by a turn.
    """

    stamp: int
    task: str
    state: np.ndarray
    action: np.ndarray
    is_intervention: bool
    images: dict[str, int]
    mark: int = 0


class Episode:
    """The moments of an episode, stored in arrays."""

    def __init__(self, task: str, views: Iterable[str], mark: int = 0) -> None:
        self.task, self.mark = task, mark
        self._stamps, self._interventions = array('q'), array('B')
        self._state, self._action = array('d'), array('d')
        self._places = {view: array('q') for view in views}

    def add(self, moment: Moment) -> None:
        self._stamps.append(moment.stamp)
        self._interventions.append(moment.is_intervention)
        self._state.extend(moment.state)
        self._action.extend(moment.action)
        for view, places in self._places.items():
            places.append(moment.images[view])

    def __len__(self) -> int:
        return len(self._stamps)

    def __getitem__(self, index: int) -> Moment:
        return Moment(
            self._stamps[index],
            self.task,
            self.state[index],
            self.action[index],
            bool(self._interventions[index]),
            {view: places[index] for view, places in self._places.items()},
            self.mark,
        )

    @property
    def state(self) -> np.ndarray:
        """Return the states, float64 [T, D]."""
        return np.frombuffer(self._state).reshape(len(self), -1)

    @property
    def action(self) -> np.ndarray:
        """Return the actions, float64 [T, A]."""
        return np.frombuffer(self._action).reshape(len(self), -1)

    @property
    def interventions(self) -> np.ndarray:
        """Return whether an operator moved the arm, bool [T]."""
        return np.frombuffer(self._interventions, bool)

    @property
    def places(self) -> dict[str, np.ndarray]:
        """Return the places of the images, int64 [T] by view; they never decrease."""
        return {view: np.frombuffer(places, np.int64) for view, places in self._places.items()}


@dataclass(frozen=True)
class Cut:
    """Largest age (s) of images and joint positions; least: length (s) of the shortest episode."""

    max_image_age: float = 0.2
    max_state_age: float = 0.2
    least: float = 1.0


class _UnusablePeriodError(Exception):
    """Raised for a period that cannot be used."""


class _Shift(NamedTuple):
    """Shift of continuous joints by turns, in the policy's units: [D] and [A], or 0."""

    state: np.ndarray | float
    action: np.ndarray | float


_Outcome = tuple[Moment, _Shift] | str


class Episodes:
    """The episodes of an unbroken piece of a recording, in order.

    skipped: number of periods that are in no episode, and of values that are ignored, by reason.
    """

    def __init__(self, signals: Signals, cut: Cut) -> None:
        self._signals, self._cut = signals, cut
        self._robot = Embodiment.of(signals.recording.contract)
        self._dt = round(SECOND / self._robot.contract.fps)
        self._steps = np.array([d.is_velocity for d in self._robot.actions.dimensions])
        limits = self._robot.contract.limits
        self._continuous = [axis for axis in self._robot.axes if limits[axis].continuous]
        self._least = max(2, round(cut.least * self._robot.contract.fps))
        self.skipped: Counter[str] = Counter()
        self._next: int | None = None  # the period that is decided next, ns
        self._waiting: list[_Outcome] = []  # periods after the newest image
        self._running: Episode | None = None
        self._shift = _Shift(0.0, 0.0)  # of the running episode
        self.found = tuple(self._find())
        for name, series in signals.all_series().items():
            if series.late:
                self.skipped[f'late values of {name}'] += series.late
            if series.early:
                self.skipped[f'values of {name} with stamps from the future'] += series.early

    def _find(self) -> Iterator[Episode]:
        signals, settled = self._signals, None
        for came in signals.read():
            until = came - PATIENCE
            if settled is None or until - settled >= SECOND:
                settled = until
                yield from self._decided(until)
                signals.forget(until if self._next is None else self._next)
        yield from self._decided(None)
        yield from self._ended()

    def _decided(self, until: int | None) -> Iterator[Episode]:
        """Decide the periods that end by `until`, None for all; yield the episodes that ended.

        The first period is that of the first command, or of the first takeover; the last one is
        that of the last image.
        """
        s = self._signals
        seen = max((x.stamps[-1] for x in s.images.values() if x.stamps), default=-1) + self._dt
        if self._next is None:
            begin = self._begin()
            if begin is None or (until is not None and begin > until):
                return
            self._next = begin
        end = seen if until is None else until - self._dt + 1
        while self._next < end:
            self._waiting.append(self._outcome(self._next))
            self._next += self._dt
            if self._next - self._dt < seen:
                yield from self._used()

    def _begin(self) -> int | None:
        """Return the time of the first command or takeover."""
        control = zip(self._signals.control.stamps, self._signals.control.values, strict=True)
        taken = (at for at, control in control if control.state == TAKEN_OVER)
        return min([*self._signals.commands.stamps[:1], *islice(taken, 1)], default=None)

    def _used(self) -> Iterator[Episode]:
        """Add the waiting periods to episodes; yield the episodes that ended."""
        for outcome in self._waiting:
            if isinstance(outcome, str):
                self.skipped[outcome] += 1
                yield from self._ended()
                continue
            moment, shift = outcome
            running = self._running
            if running is None or (moment.task, moment.mark) != (running.task, running.mark):
                yield from self._ended()
                self._running = Episode(moment.task, moment.images, moment.mark)
                self._shift = shift
            state, action = moment.state + self._shift.state, moment.action + self._shift.action
            assert self._running is not None
            self._running.add(replace(moment, state=state, action=action))
        self._waiting.clear()

    def _ended(self) -> Iterator[Episode]:
        episode, self._running = self._running, None
        if episode is not None and len(episode) >= self._least:
            yield episode
        elif episode is not None:
            self.skipped[f'of an episode shorter than {self._cut.least:g} s'] += len(episode)

    def _outcome(self, at: int) -> _Outcome:
        """Return a period with its shift, or why it cannot be used."""
        try:
            return self._moment(at), self._begun_within_a_turn(at)
        except _UnusablePeriodError as reason:
            return str(reason)

    def _begun_within_a_turn(self, at: int) -> _Shift:
        """Return the shift that brings continuous joints into (-pi, pi] at a moment."""
        if not self._continuous:
            return _Shift(0.0, 0.0)
        felt = self._felt(at)
        turns = {n: unwrapped(felt[n], 0.0) - felt[n] for n in self._continuous if n in felt}

        def shift(dimensions: Sequence[Dimension]) -> np.ndarray:
            return np.array(
                [0.0 if d.is_velocity else d.scale * turns.get(d.axis, 0.0) for d in dimensions]
            )

        return _Shift(shift(self._robot.state.dimensions), shift(self._robot.actions.dimensions))

    def _felt(self, at: int) -> dict[str, float]:
        """Return the newest positions at a moment, by joint."""
        return newest(self._signals.positions, at, round(self._cut.max_state_age * SECOND))

    def _moment(self, at: int) -> Moment:
        mark = self._signals.episode(at)
        if mark is None:
            raise _UnusablePeriodError('outside of the marked episodes')
        task = self._signals.task(at)
        if not task:
            raise _UnusablePeriodError('without an instruction')
        action, is_intervention = self._action(at)
        images = self._images(at)
        return Moment(at, task, self._state(at), action, is_intervention, images, mark)

    def _state(self, at: int) -> np.ndarray:
        s, most = self._signals, round(self._cut.max_state_age * SECOND)
        try:
            return self._robot.state.policy(self._felt(at), newest(s.velocities, at, most))
        except ValueError as error:
            raise _UnusablePeriodError(f'without a state: {error}') from error

    def _images(self, at: int) -> dict[str, int]:
        most, found = round(self._cut.max_image_age * SECOND), {}
        for view, series in self._signals.images.items():
            place = series.last(at)
            if place is None or at - series.stamps[place] > most:
                raise _UnusablePeriodError(f'without an image of {view}')
            found[view] = series.values[place]
        return found

    def _action(self, at: int) -> tuple[np.ndarray, bool]:
        """Return the action in the policy's units, and whether an operator moved the arm."""
        s = self._signals
        place = s.control.last(at)
        control = None if place is None else s.control.values[place]
        if control is not None and control.state == TAKEN_OVER:
            return self._followed(at), True
        if control is None or control.state != ARMED or control.shadow:
            raise _UnusablePeriodError('while the arm was not armed')
        place = s.commands.last(at)
        if place is None or at - s.commands.stamps[place] > LASTS * self._lasts:
            raise _UnusablePeriodError('without a command')
        command: Commanded = s.commands.values[place]
        if command.source == STOP or not len(command.values):
            raise _UnusablePeriodError('while the arm was stopped')
        values = command.values[-1] if command.source == HOLD else command.at(at, self._steps)
        return self._checked(values, at), False

    @property
    def _lasts(self) -> int:
        return max(self._dt, round(self._signals.recording.period * SECOND))

    def _followed(self, at: int) -> np.ndarray:
        """Return the joint positions one period later as an action."""
        robot = self._robot
        if others := [d.select for d in robot.actions.dimensions if not is_joint(d.select)]:
            raise _UnusablePeriodError(
                f'while an operator moved {others[0]}, which is not measured'
            )
        if speeds := [d.select for d in robot.actions.dimensions if d.is_velocity]:
            raise _UnusablePeriodError(
                f'while an operator moved {speeds[0]}, a velocity without command'
            )
        known = newest(self._signals.positions, at + self._dt, self._dt - 1)  # later than at
        if missing := [joint for joint in robot.joints if joint not in known]:
            raise _UnusablePeriodError(
                f'while an operator moved {missing[0]}, whose position is missing'
            )
        return self._checked(np.array([known[joint] for joint in robot.joints]), at)

    def _checked(self, si: np.ndarray, at: int) -> np.ndarray:
        """Return an action in the policy's units, continuous joints within pi of the arm."""
        if not np.isfinite(si).all():
            raise _UnusablePeriodError('with a command that is not finite')
        felt, si = self._felt(at), si.copy()
        for axis in self._continuous:
            i = self._robot.axes.index(axis)
            if axis in felt and not self._steps[i]:
                si[i] = unwrapped(si[i], felt[axis])
        return self._robot.actions.policy(si)
