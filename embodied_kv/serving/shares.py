"""How many streams each robot of a fleet may have: nobody's end for another's.

Knows live streams and whose they are. Does not know what they say, or who asks. Any thread may
call it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

from embodied_kv.engine.engine import Engine
from embodied_kv.errors import CodedError, ErrorCode
from embodied_kv.kv.decode_stream import DecodeStream

BEGUN = 2  # tokens of a stream that has taken part in a step of all


class NoShare(CodedError):
    """No stream may be opened now; the message says why."""

    code = ErrorCode.NO_ROOM


class StreamShares:
    """Of the engine's streams, an equal share for each robot that is there.

    A stream holds one prefix row at most that nobody else holds. So while there are no more than
    `capacity`, a batch finds its rows, and each robot keeps its newest one, without the end of any
    stream. A robot at its share ends its own oldest stream that has taken part in a step of all,
    and no other: however fast one asks, the others go on between its questions.
    """

    def __init__(self, engine: Engine) -> None:
        self._kv, self._spare = engine.kv, engine.config.rows - engine.config.robots
        self._robots: set[str] = set()
        self._lock = Lock()

    def join(self, robot: str) -> None:
        """From now on there is a share for it."""
        with self._lock:
            self._robots.add(robot)

    def leave(self, robot: str) -> None:
        """From now on there is none; its streams end."""
        with self._lock:
            self._robots.discard(robot)
            self._end(self.of(robot), 'cancelled')

    @property
    def capacity(self) -> int:
        """Streams of all robots."""
        return min(
            self._kv.streams_max, self._kv.language_rows_max, self._spare - len(self._robots)
        )

    @property
    def each(self) -> int:
        """Streams of one robot; at least one, where there is room for any."""
        return max(min(1, self.capacity), self.capacity // max(1, len(self._robots)))

    def of(self, robot: str) -> list[DecodeStream]:
        """The robot's live streams, oldest first."""
        return [s for s in self._kv.streams.live() if s.lease.handle.robot == robot]

    def check(self, robot: str, streams: int) -> None:
        """Whether so many of the robot fit in place of those it has. Raises NoShare."""
        with self._lock:
            self._check(robot, streams, len(self._kv.streams.live()) - len(self.of(robot)))

    @contextmanager
    def room(self, robot: str, streams: int = 1, ends: bool = True) -> Iterator[None]:
        """Within it the robot may open so many more. Raises NoShare, with nothing changed.

        ends: where its share is full, its oldest ones end for them.
        """
        with self._lock:
            own = self.of(robot)
            surplus = max(0, len(own) + streams - self.each)
            ending = [s for s in own if len(s.tokens) >= BEGUN][: surplus if ends else 0]
            self._check(robot, streams, len(self._kv.streams.live()) - len(ending))
            if len(ending) < surplus:
                raise NoShare(
                    f'the {self.each} streams that {robot} may have are busy: wait until one has '
                    'said something, or cancel it'
                )
            self._end(ending, 'evicted')
            yield

    def _check(self, robot: str, streams: int, others: int) -> None:
        """others: that live beside them."""
        if robot not in self._robots:
            raise NoShare(f'{robot} may have no streams: its session has ended')
        if streams > self.each:
            raise NoShare(
                f'{robot} may have {self.each} streams, not {streams}, as one of '
                f'{len(self._robots)} robots: raise engine.streams and engine.rows'
            )
        if others + streams > self.capacity:
            raise NoShare(
                f'{others} of {self.capacity} streams live, most of other robots: wait, or raise '
                'engine.streams and engine.rows'
            )

    def _end(self, streams: Sequence[DecodeStream], reason: str) -> None:
        for stream in streams:
            self._kv.streams.release(stream, reason)
