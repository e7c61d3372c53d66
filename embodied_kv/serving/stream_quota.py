"""The part of a batch engine that belongs to one robot: its stream quota and its session part."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

from embodied_kv.capsule.capsule import CapsuleError, FrozenPart
from embodied_kv.engine.compression import ACTION
from embodied_kv.engine.engine import Engine
from embodied_kv.errors import CodedError, ErrorCode
from embodied_kv.kv.decode_stream import DecodeStream
from embodied_kv.kv.manager import LANGUAGE
from embodied_kv.serving.batch import KeptRows
from embodied_kv.session import frozen_facts
from embodied_kv.session.engine_part import Branch, EnginePart

BEGUN = 2  # minimum tokens of a stream that has taken part in a common decode step


class QuotaError(CodedError):
    """A stream that cannot be opened now; the message states the reason."""

    code = ErrorCode.NO_ROOM


class StreamQuota:
    """An equal share of the engine's streams for each robot. Any thread may call the methods.

    A stream holds at most one prefix row that nothing else holds. Up to `capacity` streams
    therefore leave enough rows for a batch and for the newest row of each robot. A robot at its
    quota ends its own oldest stream that has taken part in a common decode step, so its questions
    end no stream of another robot.
    """

    def __init__(self, engine: Engine) -> None:
        self._kv, self._spare = engine.kv, engine.config.rows - engine.config.max_batch_robots
        self._robots: set[str] = set()
        self._lock = Lock()

    def join(self, robot: str) -> None:
        with self._lock:
            self._robots.add(robot)

    def leave(self, robot: str) -> None:
        """Remove a robot and end its streams."""
        with self._lock:
            self._robots.discard(robot)
            self._end(self.of(robot), 'cancelled')

    @property
    def capacity(self) -> int:
        """The maximum number of streams of all robots."""
        return min(
            self._kv.streams_max, self._kv.language_rows_max, self._spare - len(self._robots)
        )

    @property
    def each(self) -> int:
        """The maximum number of streams of one robot; at least one if any is possible."""
        return max(min(1, self.capacity), self.capacity // max(1, len(self._robots)))

    def of(self, robot: str) -> list[DecodeStream]:
        """Return the live streams of a robot, oldest first."""
        return [s for s in self._kv.streams.live() if s.lease.handle.robot == robot]

    def check(self, robot: str, streams: int) -> None:
        """Raise QuotaError unless `streams` fit in place of those that the robot has."""
        with self._lock:
            self._check(robot, streams, len(self._kv.streams.live()) - len(self.of(robot)))

    @contextmanager
    def room(self, robot: str, streams: int = 1, ends: bool = True) -> Iterator[None]:
        """Reserve room for more streams of a robot in this context.

        Raises QuotaError before anything has changed. `ends` states whether, at its quota, the
        oldest streams of the robot end for the new ones.
        """
        with self._lock:
            own = self.of(robot)
            surplus = max(0, len(own) + streams - self.each)
            ending = [s for s in own if len(s.tokens) >= BEGUN][: surplus if ends else 0]
            self._check(robot, streams, len(self._kv.streams.live()) - len(ending))
            if len(ending) < surplus:
                raise QuotaError(
                    f'streams of {robot} must be at most {self.each} (got one more, and all are '
                    'busy); wait for the first words of one, or cancel it'
                )
            self._end(ending, 'evicted')
            yield

    def _check(self, robot: str, streams: int, others: int) -> None:
        if robot not in self._robots:
            raise QuotaError(f'{robot} must have a session to open streams (got none)')
        if streams > self.each:
            raise QuotaError(
                f'streams of {robot} must be at most {self.each}, as one of {len(self._robots)} '
                f'robots (got {streams}); raise engine.streams and engine.rows'
            )
        if others + streams > self.capacity:
            raise QuotaError(
                f'streams of all robots must be at most {self.capacity} (got {others} and '
                f'{streams} more); wait, or raise engine.streams and engine.rows'
            )

    def _end(self, streams: Sequence[DecodeStream], reason: str) -> None:
        for stream in streams:
            self._kv.streams.release(stream, reason)


class ServedPart(EnginePart):
    """The engine's part of a session that is served in batches; it includes the newest row.

    A capsule has no row if none of the robot was kept; its restore leaves the current row. Streams
    continue within the robot's quota, so that no stream of another robot ends for them. All
    methods run on the engine's thread, between two batches.
    """

    def __init__(self, engine: Engine, robot: str, kept: KeptRows, quota: StreamQuota) -> None:
        super().__init__(engine, robot)
        self._kept, self._quota = kept, quota

    def check_resumable(self, frozen: FrozenPart, branches: int = 1) -> None:
        """Raise as `EnginePart.check_resumable`, and QuotaError for too many streams."""
        super().check_resumable(frozen, branches)
        facts = frozen_facts.read(frozen)
        if streams := len(facts['streams']) * branches:
            self._quota.check(self.robot, streams)
        copy = facts['action']
        budgets = None if copy is None else facts['rows'][copy]['budgets']
        if budgets is not None and not self._kv.compressed.has_room([sum(budgets)]):
            raise CapsuleError('no room for a compressed prefix: raise engine.compressed_rows')

    def branch(
        self,
        frozen: FrozenPart,
        branches: Sequence[Branch],
        first: Sequence[DecodeStream] = (),
    ) -> list[list[DecodeStream]]:
        """Return the streams of `EnginePart.branch`; at the quota the oldest ones end for them."""
        streams = len(frozen_facts.read(frozen)['streams']) * len(branches)
        if not streams:
            return super().branch(frozen, branches, first)
        with self._quota.room(self.robot, streams):
            return super().branch(frozen, branches, first)

    def resume(self, frozen: FrozenPart) -> None:
        """Resume the session; the frozen row is the robot's newest until its next frame."""
        for stream in self.streams():  # first, because they may fill the quota
            self._kv.streams.release(stream, 'replaced')
        super().resume(frozen)
        facts = frozen_facts.read(frozen)
        number, copy = facts['current'], facts['action']
        if number is None:
            return
        frame = facts['rows'][number]
        length, sequence, stamp = frame['length'], frame['sequence'], frame['stamp']
        with self._written(frozen, number) as row:
            handle = self._kv.frames.commit(
                row, length, robot=self.robot, sequence=sequence, stamp=stamp, deadline=-math.inf
            )
        self._kept.keep(self._kv.acquire(handle))
        if copy is not None:
            readers = [ACTION, LANGUAGE] if self._engine.config.memory_rows else [ACTION]
            self._kv.keep_copy(readers, self._adopt_copy(frozen, copy, handle))
