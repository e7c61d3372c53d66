"""Merge joint states, each of which has some joints, into one state of a robot.

Stamps are ns on the ROS clock. Adding a message takes a few microseconds, because a driver may
send 1000 messages a second. `control.plausibility` judges each sample; the merger keeps the
accepted ones of each joint, and merges them when a state is requested.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import nan
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from embodied_kv.control.plausibility import Bounds, JointCheck
from embodied_kv.errors import ErrorCode
from embodied_kv.nodes.common.publishers import counted
from embodied_kv.robots.channels import JOINT_STATE
from embodied_kv.robots.units import unwrapped
from embodied_kv.text import listed, shown

HISTORY = 1024  # samples kept per joint, to find those that match a late image
INTERVALS = 8  # intervals between messages of a source that predict its next one
LATE = 20_000_000  # ns that a message may take from its stamp until it arrives
SOURCES = 16  # maximum number of sources
FROZEN = 5  # repetitions of a stamp after which the clock of a source counts as stopped
EPOCH = 10**17  # ns, three years: clocks that far apart are system time and simulated time
SECOND = 1_000_000_000  # ns

Sample = tuple[int, float, float]  # stamp, position, velocity


@dataclass(frozen=True)
class JointInput:
    """A topic, and the joints that are taken from it.

    joints: names in a JointState; for another type, the names of its values in
    `joint_states.READERS`.
    """

    topic: str
    joints: tuple[str, ...]
    type: str = JOINT_STATE


class UnknownStateError(LookupError):
    """Raised if a moment has no whole state; the message names the joint and the reason."""

    code = ErrorCode.STALE_FRAME


@dataclass(frozen=True, eq=False)
class JointSample:
    """The state of a moment in SI units, in the order of `JointMerger.names`.

    positions: float64 [joints], NaN for an unknown joint. velocities: float64 [joints], NaN where
    no driver publishes one. stamp: ns, of the known joint furthest from the requested moment.
    """

    positions: NDArray[np.float64]
    velocities: NDArray[np.float64]
    stamp: int


class _Joint:
    """Accepted samples of one joint.

    note: why the last message could not be used for it. offset: full turns (rad) that are added
    to its positions; None: to be chosen so that the next position lies within (-pi, pi].
    """

    def __init__(self, name: str, topic: str, bounds: Bounds) -> None:
        self.name, self.topic, self.check = name, topic, JointCheck(bounds)
        self.samples: deque[Sample] = deque(maxlen=HISTORY)
        self.source: _Source | None = None  # of the last message that named it
        self.refused = 0  # `check.refused` at the last report
        self.note = ''
        self.offset: float | None = 0.0

    def restart(self, turns: bool = False) -> None:
        self.check.restart(turns)
        self.samples.clear()
        self.source, self.note = None, ''

    def drop_after(self, stamp: int) -> None:
        self.check.drop_after(stamp)
        while self.samples and self.samples[-1][0] > stamp:
            self.samples.pop()

    def nearest(self, stamp: int) -> Sample | None:
        later = None
        for sample in reversed(self.samples):
            if sample[0] <= stamp:
                near = later is None or stamp - sample[0] <= later[0] - stamp
                return sample if near else later
            later = sample
        return later

    def rate(self, stamp: int, over: int) -> float:
        """Return the mean velocity before `stamp`, over `over` ns or all samples; NaN for one."""
        last, before = self.nearest(stamp), None
        for sample in reversed(self.samples):
            if last is not None and sample[0] < last[0]:
                before = sample
                if last[0] - sample[0] >= over:
                    break
        if last is None or before is None:
            return nan
        return (last[1] - before[1]) / ((last[0] - before[0]) * 1e-9)

    def shifted(self, position: float) -> float:
        if self.offset is None:
            self.offset = unwrapped(position, 0.0) - position
        return position + self.offset


class _Source:
    """Messages that name the same joints.

    joints: wanted joints with their places in a message. twice: wanted joints that are named more
    than once. stamps: of the newest messages. received: when the last message arrived (ns on the
    ROS clock); None: unknown.
    """

    def __init__(self, names: Sequence[str], wanted: Mapping[str, _Joint]) -> None:
        count = Counter(names)
        self.joints = [
            (wanted[name], place)
            for place, name in enumerate(names)
            if name in wanted and count[name] == 1
        ]
        self.twice = [wanted[name] for name in count if name in wanted and count[name] > 1]
        self.stamps: deque[int] = deque(maxlen=INTERVALS + 1)
        self.received: int | None = None
        self.repeats = 0

    def record(self, stamp: int, received: int | None) -> None:
        stamps = self.stamps
        if stamps and stamps[-1] >= stamp:
            self.repeats = self.repeats + 1 if stamps[-1] == stamp else 0
            self.drop_after(stamp)
        else:
            self.repeats = 0
        stamps.append(stamp)
        self.received = received

    def drop_after(self, stamp: int) -> None:
        while self.stamps and self.stamps[-1] > stamp:
            self.stamps.pop()
        if not self.stamps:
            self.repeats = 0

    def next(self) -> int | None:
        """Return the expected stamp of the next message; None before the second one."""
        intervals = sorted(b - a for a, b in pairwise(self.stamps))
        return self.stamps[-1] + intervals[len(intervals) // 2] if intervals else None


UnknownJoint = tuple[_Joint, Sample | None]  # a joint with its nearest sample


class JointMerger:
    """Keep the plausible positions of some joints, and merge them into states. Thread-safe.

    Args:
        inputs: Topics, and the joints that are taken from each.
        max_age: Largest time (s) between a state and each of its samples.
        bounds: Limits by joint. Other joints are checked for finite positions only.
        publishers: Returns the names of the nodes that publish a topic.
        age_name: Name of the parameter that sets `max_age`, for messages.

    Raises:
        ValueError: if a joint is taken from two topics.
    """

    def __init__(
        self,
        inputs: Sequence[JointInput],
        max_age: float,
        bounds: Mapping[str, Bounds] | None = None,
        publishers: Callable[[str], Sequence[str]] = lambda topic: (),
        age_name: str = 'max_joint_state_skew',
    ) -> None:
        topics: dict[str, str] = {}  # by joint
        for given in inputs:
            for name in given.joints:
                if topics.setdefault(name, given.topic) != given.topic:
                    raise ValueError(
                        f'joint {name} must be read from one topic (got {topics[name]} and '
                        f'{given.topic})'
                    )
        self.names = tuple(topics)
        self._max_age, self._publishers, self.clips = max_age, publishers, False
        self._allowed = f'{age_name} {max_age * 1e3:.0f} ms'
        bounds = bounds or {}
        self._joints = [
            _Joint(name, topic, bounds.get(name, Bounds())) for name, topic in topics.items()
        ]
        self._wanted: dict[str, dict[str, _Joint]] = {given.topic: {} for given in inputs}
        for joint in self._joints:
            self._wanted[joint.topic][joint.name] = joint
        self._sources: OrderedDict[tuple[str, tuple[str, ...]], _Source] = OrderedDict()
        self._lock = Lock()

    def restart(self, turns: bool = False) -> None:
        """Forget everything. turns: except the number of turns of continuous joints."""
        with self._lock:
            self._sources.clear()
            for joint in self._joints:
                joint.restart(turns)

    def add(
        self,
        topic: str,
        stamp: int,
        names: Sequence[str],
        positions: Sequence[float],
        velocities: Sequence[float] = (),
        received: int | None = None,
    ) -> None:
        """Add a message. Joints that are not wanted are ignored.

        With `clips`, a stamp that is ahead of the arrival, by at most `max_age`, counts as the
        arrival.

        Args:
            topic: The topic of the message.
            stamp: The stamp of the message (ns).
            names: Names of joints.
            positions: Their positions (rad or m).
            velocities: Their velocities, or none.
            received: When the message arrived (ns on the ROS clock), if that is known.

        Raises:
            ValueError: if samples are refused. All other samples of the message are kept.
        """
        with self._lock:
            source = self._source(topic, tuple(names))
            if not source.joints and not source.twice:
                return
            source.record(stamp, received)
            ahead = 0 if received is None or not self.clips else stamp - received
            if 0 < ahead <= self._max_age * SECOND:
                stamp -= ahead  # the driver's clock is ahead; no position is from the future
            if len(positions) < len(names):
                refused = [joint for joint, _ in source.joints] + source.twice
                for joint in refused:
                    joint.source = source
                    joint.note = (
                        f'must have one position for each name (got {len(positions)} for '
                        f'{len(names)} names on {topic}); check its driver'
                    )
            else:
                refused = self._keep(source, stamp, positions, velocities)
        for joint in source.twice:
            joint.source = source
            joint.note = f'must be named once in a message (named twice on {topic})'
        if refused or source.twice:
            joint = (refused or source.twice)[0]
            raise ValueError(f'joint {shown(joint.name)} {joint.note or joint.check.refusal()}')

    def _keep(
        self,
        source: _Source,
        stamp: int,
        positions: Sequence[float],
        velocities: Sequence[float],
    ) -> list[_Joint]:
        """Keep the plausible samples of a message, and return the joints of the others."""
        refused, known = [], len(velocities) >= len(positions)
        for joint, place in source.joints:
            joint.source, check = source, joint.check
            position = check.add(stamp, positions[place])
            if position is not None:
                if check.replaced:
                    joint.samples.clear()
                    check.replaced = False
                joint.samples.append((stamp, position, velocities[place] if known else nan))
                joint.note = ''
            elif check.refused != joint.refused:
                joint.refused, joint.note = check.refused, ''
                refused.append(joint)
        return refused

    def at(self, stamp: int) -> JointSample:
        """Return the state of a moment: the nearest sample of each joint.

        Raises:
            UnknownStateError: if a joint is not known, or not within `max_age` of the moment.
        """
        state, unknown = self._look(stamp)
        if unknown:
            raise UnknownStateError(self._explain(unknown, stamp))
        return state

    def known(self, stamp: int) -> JointSample:
        """Return what is known of the state of a moment; unknown joints are NaN."""
        return self._look(stamp)[0]

    def problem(self, stamp: int) -> str:
        """Return why the state of a moment is not known as a whole; '' if it is."""
        unknown = self._look(stamp)[1]
        return self._explain(unknown, stamp) if unknown else ''

    def _look(self, stamp: int) -> tuple[JointSample, list[UnknownJoint]]:
        """Return what is known of a state, and the other joints."""
        positions, velocities = np.full((2, len(self._joints)), nan)
        unknown: list[UnknownJoint] = []
        furthest, away = stamp, -1
        with self._lock:
            for i, joint in enumerate(self._joints):
                sample = joint.nearest(stamp)
                apart = 0 if sample is None else abs(sample[0] - stamp)
                if sample is None or apart > self._max_age * SECOND or not joint.check.is_known:
                    unknown.append((joint, sample))
                    continue
                positions[i], velocities[i] = joint.shifted(sample[1]), sample[2]
                if apart > away:
                    furthest, away = sample[0], apart
        return JointSample(positions, velocities, furthest), unknown

    def rates(self, stamp: int, over: int) -> NDArray[np.float64]:
        """Return the velocities [joints] up to a moment in SI units, from the positions.

        over: minimum interval (ns), if the samples cover it. NaN for a joint with a single sample.
        """
        with self._lock:
            return np.array([joint.rate(stamp, over) for joint in self._joints])

    def wrap(self) -> None:
        """Shift continuous joints by full turns, so that their next position is in (-pi, pi]."""
        with self._lock:
            for joint in self._joints:
                if joint.check.bounds.continuous:
                    joint.offset = None

    def expects(self, stamp: int, now: int) -> bool:
        """Return whether a message nearer to a moment is about to arrive. stamp, now: ns.

        This holds if its driver, at its usual rate, has sent it less than LATE ago.
        """
        with self._lock:
            for source in self._sources.values():
                if source.stamps and source.stamps[-1] < stamp:
                    last, coming = source.stamps[-1], source.next()
                    if coming is None or not coming <= now < coming + LATE:
                        continue
                    if abs(coming - stamp) < stamp - last:
                        return True
        return False

    def drop_after(self, stamp: int) -> None:
        """Drop samples later than `stamp`, because time was set back."""
        with self._lock:
            for joint in self._joints:
                joint.drop_after(stamp)
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

    # ------------------------------------------------------------------ reasons

    def _explain(self, unknown: Sequence[UnknownJoint], stamp: int) -> str:
        """Return why one joint is unknown, and the names of the other unknown joints."""
        with self._lock:
            heard = [(topic, name) for topic, names in self._sources for name in names]
        if not heard:
            return f'no joint state received on {listed(list(self._wanted))}'
        joint, sample = min(unknown, key=lambda entry: entry[0].source is None)
        source = joint.source  # `restart` may forget it on another thread
        if source is None:
            names = [name for topic, name in heard if topic == joint.topic]
            got = listed(list(dict.fromkeys(names))) if names else 'no message'
            reason = (
                f'must be published on {joint.topic} (got {got}); check the names in the contract '
                'and in its driver'
            )
        else:
            reason = self._reason(joint, source, sample, stamp)
        others = ', '.join(other.name for other, _ in unknown if other is not joint)
        return f'joint {joint.name} {reason}' + (f' (also unknown: {others})' if others else '')

    def _reason(self, joint: _Joint, source: _Source, sample: Sample | None, stamp: int) -> str:
        if joint.note:
            return joint.note
        if source.repeats >= FROZEN:
            return (
                f'must have stamps that increase (got {source.repeats + 1} messages stamped '
                f'{source.stamps[-1] / SECOND:.3f} s on {joint.topic}); check the clock of '
                'its driver'
            )
        if problem := joint.check.problem():
            return (
                f'{problem}{self._publishing(joint)}' if joint.check.is_contradicted else problem
            )
        return self._stale(joint, source, stamp, sample[0]) if sample else 'has no sample yet'

    def _publishing(self, joint: _Joint) -> str:
        nodes = self._publishers(joint.topic)
        names = counted(nodes)
        if len(nodes) > 1:
            return f'; publishers of {joint.topic}: {names}; only one may publish this joint'
        return f'; check the driver that publishes {joint.topic}' + (
            f' ({names})' if names else ''
        )

    def _stale(self, joint: _Joint, source: _Source, requested: int, nearest: int) -> str:
        """Return why the sample with stamp `nearest` is too far from the requested stamp."""
        allowed, is_sure = self._allowed, source.received is not None
        now = source.received or requested
        offset = source.stamps[-1] - now
        if abs(offset) > self._max_age * SECOND and (is_sure or offset > 0):
            side = 'ahead of' if offset > 0 else 'behind'
            remedy = 'synchronize the clock of its driver'
            if abs(offset) > EPOCH:
                remedy = 'set use_sim_time alike for all nodes'
            return (
                f'must have current stamps (got {abs(offset) / SECOND:.2f} s {side} the clock of '
                f'this node on {joint.topic}, {allowed}); {remedy}'
            )
        side = 'after' if nearest > requested else 'before'
        doubt = '' if is_sure else ', or its clock is wrong'
        return (
            f'must have a sample within {allowed} (got {abs(nearest - requested) / 1e6:.0f} ms '
            f'{side} the requested time on {joint.topic}); its driver is slow or silent{doubt}'
        )
