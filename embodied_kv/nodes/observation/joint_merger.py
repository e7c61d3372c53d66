"""One state of a robot from joint states that name some of its joints each.

Knows names and stamps (ns on the ROS clock). Does not know messages or ROS: `joint_states` feeds
it. Adding is cheap, a driver may send 1000 messages a second; merging is done when somebody asks.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf, isfinite, nan
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embodied_kv.nodes.observation.description import JointInput
from embodied_kv.text import listed

HISTORY = 1024  # samples of a source that are kept, to find those of an image that took its time
INTERVALS = 8  # between messages of a source, by which its next one is expected
LATE = 20_000_000  # ns that a message may take from its stamp until it is here
SOURCES = 16  # kinds of messages that are kept apart: those that name other joints


class StateUnknown(LookupError):
    """There is no whole state of that moment; says which joint is missing."""


@dataclass(frozen=True, eq=False)
class JointSample:
    """The state of a moment: SI units, in the order of the description.

    positions: float64 [joints]. velocities: float64 [joints], NaN where no driver says one. stamp:
    ns, of the part that lies furthest from the moment that was asked for.
    """

    positions: NDArray[np.float64]
    velocities: NDArray[np.float64]
    stamp: int


class _Part(NamedTuple):
    """Some joints, as one message said."""

    stamp: int
    positions: list[float]
    velocities: list[float]


class _Source:
    """Messages that name the same joints. ours: indices of the joints. theirs: in the message."""

    def __init__(self, names: Sequence[str], wanted: dict[str, int]) -> None:
        places = {name: place for place, name in enumerate(names) if name in wanted}
        self.names = tuple(places)
        self.ours, self.theirs = [wanted[name] for name in places], list(places.values())
        self.parts: deque[_Part] = deque(maxlen=HISTORY)

    def add(self, part: _Part) -> None:
        self.drop_after(part.stamp)
        self.parts.append(part)

    def drop_after(self, stamp: int) -> None:
        while self.parts and self.parts[-1].stamp > stamp:
            self.parts.pop()

    def next(self) -> int | None:
        """The stamp of the next message, as fast as they come; None before the second one."""
        stamps = [part.stamp for part in islice(reversed(self.parts), INTERVALS + 1)]
        if len(stamps) < 2:
            return None
        intervals = sorted(b - a for b, a in zip(stamps, stamps[1:], strict=False))
        return stamps[0] + intervals[len(intervals) // 2]

    def nearest(self, stamp: int) -> _Part | None:
        later = None
        for part in reversed(self.parts):
            if part.stamp <= stamp:
                near = later is None or stamp - part.stamp <= later.stamp - stamp
                return part if near else later
            later = part
        return later

    def rates(self, stamp: int, over: int) -> NDArray[np.float64]:
        """By positions, from a message of at least `over` ns before; NaN before the second one."""
        last = self.nearest(stamp)
        before = None
        for part in reversed(self.parts):
            if last is not None and part.stamp < last.stamp:
                before = part
                if last.stamp - part.stamp >= over:
                    break
        if last is None or before is None:
            return np.full(len(self.ours), nan)
        way = np.subtract(last.positions, before.positions)
        return way / ((last.stamp - before.stamp) * 1e-9)


class JointMerger:
    """Keeps what drivers say of some joints, and puts states together.

    inputs: which joints are taken from which topic. max_age: s that no part of a state may lie
    from the moment of the state. From any thread.
    """

    def __init__(self, inputs: Sequence[JointInput], max_age: float) -> None:
        self.names = tuple(name for joint in inputs for name in joint.joints)
        self._max_age = max_age
        index = {name: number for number, name in enumerate(self.names)}
        self._wanted = {
            joint.topic: {name: index[name] for name in joint.joints} for joint in inputs
        }
        self._sources: OrderedDict[Hashable, _Source] = OrderedDict()
        self._lock = Lock()

    def restart(self) -> None:
        """Forget everything."""
        with self._lock:
            self._sources.clear()

    def add(
        self,
        topic: str,
        stamp: int,
        names: Sequence[str],
        positions: Sequence[float],
        velocities: Sequence[float] = (),
    ) -> None:
        """Some joints have these positions, and velocities if the message has any.

        Joints that nobody asked for are passed over. Raises ValueError that names the joint for a
        position that is missing or not finite; nothing is kept then.
        """
        with self._lock:
            source = self._source(topic, tuple(names))
            if not source.ours:
                return
            if len(positions) < len(names):
                raise ValueError(f'{len(names)} joints have {len(positions)} positions')
            part = [positions[place] for place in source.theirs]
            if not all(map(isfinite, part)):
                wrong = next(i for i, value in enumerate(part) if not isfinite(value))
                raise ValueError(f'joint {source.names[wrong]} is {part[wrong]}')
            known = len(velocities) >= len(names)
            speeds = [velocities[place] for place in source.theirs] if known else []
            source.add(_Part(stamp, part, speeds))

    def at(self, stamp: int) -> JointSample:
        """The state of this moment: of each joint what was said nearest to it.

        Raises StateUnknown where a joint is not known, or not within `max_age` of the moment.
        """
        with self._lock:
            nearest = [(source, source.nearest(stamp)) for source in self._sources.values()]
        positions, velocities = np.full((2, len(self.names)), nan)
        away, stamps = [inf] * len(self.names), [stamp] * len(self.names)
        for source, part in nearest:
            if part is None:
                continue
            apart = abs(part.stamp - stamp)
            for i, joint in enumerate(source.ours):
                if apart < away[joint]:
                    away[joint], stamps[joint] = apart, part.stamp
                    positions[joint] = part.positions[i]
                    velocities[joint] = part.velocities[i] if part.velocities else nan
        furthest = max(range(len(away)), key=away.__getitem__, default=None)
        if furthest is None:
            return JointSample(positions, velocities, stamp)
        if away[furthest] > self._max_age * 1e9:
            raise StateUnknown(self._missing(away, furthest))
        return JointSample(positions, velocities, stamps[furthest])

    def rates(self, stamp: int, over: int) -> NDArray[np.float64]:
        """How fast each joint moved until this moment, by its positions: [joints], SI units.

        over: ns, at least, where so much is known. NaN for a joint that was heard of once.
        """
        rates = np.full(len(self.names), nan)
        with self._lock:
            for source in self._sources.values():
                known = source.rates(stamp, over)
                fresh = np.isfinite(known)
                rates[np.array(source.ours, int)[fresh]] = known[fresh]
        return rates

    def expects(self, stamp: int, now: int) -> bool:
        """Whether a message is about to arrive that lies nearer to this moment. now: ns.

        It was sent by now, as fast as its driver sends, and is not overdue yet.
        """
        with self._lock:
            for source in self._sources.values():
                if source.parts and source.parts[-1].stamp < stamp:
                    last, coming = source.parts[-1].stamp, source.next()
                    if coming is None or not coming <= now < coming + LATE:
                        continue
                    if abs(coming - stamp) < stamp - last:
                        return True
        return False

    def drop_after(self, stamp: int) -> None:
        """Time was set back: what was said of later moments is not true any more."""
        with self._lock:
            for source in self._sources.values():
                source.drop_after(stamp)

    def _source(self, topic: str, names: tuple[str, ...]) -> _Source:
        source = self._sources.get((topic, names))
        if source is None:
            source = self._sources[topic, names] = _Source(names, self._wanted[topic])
            if len(self._sources) > SOURCES:
                self._sources.popitem(last=False)
        self._sources.move_to_end((topic, names))
        return source

    def _missing(self, away: Sequence[float], furthest: int) -> str:
        unknown = [self.names[i] for i, apart in enumerate(away) if apart == inf]
        if not unknown:
            return (
                f'joint {self.names[furthest]} is known {away[furthest] / 1e6:.0f} ms away only, '
                f'max_state_age is {self._max_age * 1e3:.0f} ms'
            )
        with self._lock:
            named = dict.fromkeys(name for _, names in self._sources for name in names)
        if not named:
            return 'no joint positions yet'
        return f'no joint {", ".join(unknown)}; there are: {listed(list(named))}'
