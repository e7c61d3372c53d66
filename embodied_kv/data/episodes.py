"""Episodes out of a recording: at each period what was seen, felt, told and commanded.

Knows the robot's contract and what a period must have. Does not know files of data sets. An
episode is an unbroken row of periods with one instruction. Where an operator moved the arm,
nobody knows a command: the action is where its joints were one period later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

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
from embodied_kv.robots.angles import unwrapped
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.mapping import Dimension
from embodied_kv.robots.sources import is_joint

LASTS = 2  # control periods for which a command counts, where no other follows


@dataclass(frozen=True)
class Moment:
    """One period, in the policy's units. pictures: by view, its place in the recording.

    Continuous joints are unwrapped: an episode begins within (-pi, pi], and neither its state nor
    its actions jump by a turn.
    """

    stamp: int
    task: str
    state: np.ndarray
    action: np.ndarray
    is_intervention: bool
    pictures: dict[str, int]


@dataclass(frozen=True)
class Cut:
    """How old what is used may be: images and joints, s; least: s of the shortest episode."""

    max_image_age: float = 0.2
    max_state_age: float = 0.2
    least: float = 1.0


class _Lacks(Exception):
    """A period that cannot be used, and why."""


class Episodes:
    """The episodes of a recording, in order.

    skipped: periods that are in none, by reason, and values that are left out.
    """

    def __init__(self, signals: Signals, cut: Cut) -> None:
        self._signals, self._cut = signals, cut
        self._robot = Embodiment.of(signals.recording.contract)
        self._dt = round(SECOND / self._robot.contract.fps)
        self._steps = np.array([d.is_velocity for d in self._robot.actions.dimensions])
        limits = self._robot.contract.limits
        self._continuous = [axis for axis in self._robot.axes if limits[axis].continuous]
        self.skipped: Counter[str] = Counter()
        for name, series in signals.all_series().items():
            if series.late:
                self.skipped[f'values of {name} from before the one that came first'] += (
                    series.late
                )
        self.found = tuple(self._find())

    def _find(self) -> Iterator[tuple[Moment, ...]]:
        least = max(2, round(self._cut.least * self._robot.contract.fps))
        running: list[Moment] = []
        for at in self._periods():
            try:
                moment = self._moment(at)
            except _Lacks as reason:
                self.skipped[str(reason)] += 1
                moment = None
            if running and (moment is None or moment.task != running[-1].task):
                yield from self._ended(running, least)
                running = []
            if moment is not None:
                running.append(moment)
        yield from self._ended(running, least)

    def _ended(self, moments: list[Moment], least: int) -> Iterator[tuple[Moment, ...]]:
        if len(moments) >= least:
            yield tuple(self._begun_within_a_turn(moments))
        elif moments:
            self.skipped[f'of an episode shorter than {self._cut.least:g} s'] += len(moments)

    def _begun_within_a_turn(self, moments: Sequence[Moment]) -> Iterator[Moment]:
        """Yield the moments, with continuous joints shifted by turns into (-pi, pi] at first."""
        at = self._felt(moments[0].stamp)
        turns = {n: unwrapped(at[n], 0.0) - at[n] for n in self._continuous if n in at}

        def shift(dimensions: Sequence[Dimension]) -> np.ndarray:
            return np.array(
                [0.0 if d.is_velocity else d.scale * turns.get(d.axis, 0.0) for d in dimensions]
            )

        state = shift(self._robot.state.dimensions)
        action = shift(self._robot.actions.dimensions)
        for moment in moments:
            yield replace(moment, state=moment.state + state, action=moment.action + action)

    def _felt(self, at: int) -> dict[str, float]:
        """Return the newest positions at a moment, by joint."""
        return newest(self._signals.positions, at, round(self._cut.max_state_age * SECOND))

    def _periods(self) -> range:
        """From the first command, or the first takeover, to the last thing that was seen."""
        s = self._signals
        taken = [
            at
            for at, control in zip(s.control.stamps, s.control.values, strict=True)
            if control.state == TAKEN_OVER
        ]
        begins = [*s.commands.stamps[:1], *taken[:1]]
        ends = [series.stamps[-1] for series in s.images.values() if series.stamps]
        if not begins or not ends:
            return range(0)
        return range(min(begins), max(ends) + self._dt, self._dt)

    def _moment(self, at: int) -> Moment:
        """Raises _Lacks."""
        s = self._signals
        told = s.instruction.last(at)
        task = '' if told is None else s.instruction.values[told]
        if not task:
            raise _Lacks('without an instruction')
        action, is_intervention = self._action(at)
        return Moment(at, task, self._state(at), action, is_intervention, self._pictures(at))

    def _state(self, at: int) -> np.ndarray:
        s, most = self._signals, round(self._cut.max_state_age * SECOND)
        try:
            return self._robot.state.policy(self._felt(at), newest(s.velocities, at, most))
        except ValueError as error:
            raise _Lacks(f'without a state: {error}') from error

    def _pictures(self, at: int) -> dict[str, int]:
        most, found = round(self._cut.max_image_age * SECOND), {}
        for view, series in self._signals.images.items():
            place = series.last(at)
            if place is None or at - series.stamps[place] > most:
                raise _Lacks(f'without a picture of {view}')
            found[view] = series.values[place]
        return found

    def _action(self, at: int) -> tuple[np.ndarray, bool]:
        """In the policy's units, and whether an operator moved the arm."""
        s = self._signals
        place = s.control.last(at)
        control = None if place is None else s.control.values[place]
        if control is not None and control.state == TAKEN_OVER:
            return self._followed(at), True
        if control is None or control.state != ARMED or control.shadow:
            raise _Lacks('while nothing moved the arm')
        place = s.commands.last(at)
        if place is None or at - s.commands.stamps[place] > LASTS * self._lasts:
            raise _Lacks('without a command')
        command: Commanded = s.commands.values[place]
        if command.source == STOP or not len(command.values):
            raise _Lacks('while the arm was stopped')
        values = command.values[-1] if command.source == HOLD else command.at(at, self._steps)
        return self._checked(values, at), False

    @property
    def _lasts(self) -> int:
        return max(self._dt, round(self._signals.period * SECOND))

    def _followed(self, at: int) -> np.ndarray:
        """Where the joints were one period later."""
        robot = self._robot
        if others := [d.select for d in robot.actions.dimensions if not is_joint(d.select)]:
            raise _Lacks(f'while an operator moved {others[0]}, which nobody measures')
        if speeds := [d.select for d in robot.actions.dimensions if d.is_velocity]:
            raise _Lacks(f'while an operator moved {speeds[0]}, a velocity nobody commanded')
        known = newest(self._signals.positions, at + self._dt, self._dt - 1)  # later than at
        if missing := [joint for joint in robot.joints if joint not in known]:
            raise _Lacks(f'while an operator moved {missing[0]}, which told nothing')
        return self._checked(np.array([known[joint] for joint in robot.joints]), at)

    def _checked(self, si: np.ndarray, at: int) -> np.ndarray:
        """Return an action in the policy's units, continuous joints within pi of the arm."""
        if not np.isfinite(si).all():
            raise _Lacks('with a command that is no number')
        felt, si = self._felt(at), si.copy()
        for axis in self._continuous:
            i = self._robot.axes.index(axis)
            if axis in felt and not self._steps[i]:
                si[i] = unwrapped(si[i], felt[axis])
        return self._robot.actions.policy(si)
