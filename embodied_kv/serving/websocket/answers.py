"""What clients ask in words, and the texts that answer them.

Knows decode streams and their shares. Does not know who asks, beside a name. The engine decodes
all streams in one batch, in the time in which nobody waits for a chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from embodied_kv.engine.engine import Engine
from embodied_kv.engine.loop import DeviceThread
from embodied_kv.kv.decode_stream import DecodeStream
from embodied_kv.serving.batch import KeptRows
from embodied_kv.serving.shares import StreamShares
from embodied_kv.types import TextDelta


@dataclass(frozen=True)
class Text:
    """reason: for which it ends, as in `types.TextDelta`. tokens: that it has."""

    text: str
    tokens: int
    reason: str


@dataclass(frozen=True, eq=False)
class _Listener:
    promise: Future[Text]
    parts: list[str] = field(default_factory=list)


class Answers:
    """rows: that are read. shares: of the engine's streams."""

    def __init__(
        self, engine: Engine, device: DeviceThread, rows: KeptRows, shares: StreamShares
    ) -> None:
        self._engine, self._device, self._rows, self._shares = engine, device, rows, shares
        self._listeners: dict[int, _Listener] = {}  # by stream; on the device thread alone

    def ask(self, robot: str, questions: Sequence[str], max_tokens: int) -> list[Future[Text]]:
        """Return the answer to each question about the robot's newest row.

        The futures raise ValueError, Stale, all of them alike.
        """
        promises: list[Future[Text]] = [Future() for _ in questions]
        opened = self._device.call(lambda: self._open(robot, questions, max_tokens, promises))
        opened.add_done_callback(lambda work: _hand_on(work, promises))
        return promises

    def hear(self, deltas: Sequence[TextDelta]) -> None:
        """What any stream said; on the device thread."""
        for delta in deltas:
            listener = self._listeners.get(delta.stream)
            if listener is None:
                continue
            listener.parts.append(delta.text)
            if delta.finished:
                del self._listeners[delta.stream]
                if listener.promise.set_running_or_notify_cancel():
                    text = Text(''.join(listener.parts), delta.tokens, delta.reason)
                    listener.promise.set_result(text)

    def _open(
        self,
        robot: str,
        questions: Sequence[str],
        max_tokens: int,
        promises: Sequence[Future[Text]],
    ) -> None:
        handle = self._rows.newest(robot)
        if handle is None:
            raise ValueError(
                'there is no frame to ask about: ask for actions first, and see that engine.rows '
                'is enough for all clients'
            )
        streams: list[DecodeStream] = []
        with self._shares.room(robot, len(questions)):
            try:
                for question in questions:
                    streams.append(self._engine.open(handle, question, max_tokens=max_tokens))
            except BaseException:
                for stream in streams:
                    self._engine.kv.streams.release(stream, 'cancelled')
                raise
        for stream, promise in zip(streams, promises, strict=True):
            self._listeners[stream.id] = _Listener(promise)


def _hand_on(work: Future, promises: Sequence[Future]) -> None:
    """Report an error of the work to all of them."""
    error = CancelledWork() if work.cancelled() else work.exception()
    for promise in promises if error is not None else ():
        if promise.set_running_or_notify_cancel():
            promise.set_exception(error)


class CancelledWork(RuntimeError):
    """The engine's thread has ended."""

    def __init__(self) -> None:
        super().__init__('the engine is no longer there')
