"""What clients ask in words, and the texts that answer them.

Knows decode streams and their shares. Does not know who asks, beside a name. The engine decodes
all streams in one batch, in the time in which nobody waits for a chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from embodied_kv.engine.engine import Engine
from embodied_kv.engine.engine_thread import EngineThread
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
        self, engine: Engine, device: EngineThread, rows: KeptRows, shares: StreamShares
    ) -> None:
        self._engine, self._device, self._rows, self._shares = engine, device, rows, shares
        self._listeners: dict[int, _Listener] = {}  # by stream; on the device thread alone

    def ask(self, robot: str, question: str, max_tokens: int, evict: bool = True) -> Future[Text]:
        """Return what the policy says about the robot's newest row.

        evict: whether an older stream of the robot may end for it. The future raises ValueError,
        StaleHandleError. A future that is cancelled ends the stream.
        """
        promise: Future[Text] = Future()
        opened = self._device.call(lambda: self._open(robot, question, max_tokens, evict, promise))
        opened.add_done_callback(lambda work: _hand_on(work, promise))
        return promise

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
        self, robot: str, question: str, max_tokens: int, evict: bool, promise: Future[Text]
    ) -> None:
        if promise.cancelled():
            return
        handle = self._rows.newest(robot)
        if handle is None:
            raise ValueError(
                'there is no frame to ask about: ask for actions first, and see that engine.rows '
                'is enough for all clients'
            )
        with self._shares.room(robot, ends=evict):
            stream = self._engine.open(handle, question, max_tokens=max_tokens)
        self._listeners[stream.id] = _Listener(promise)
        promise.add_done_callback(partial(self._end_if_cancelled, stream))

    def _end_if_cancelled(self, stream: DecodeStream, promise: Future[Text]) -> None:
        """End the stream of a client that has gone. From any thread."""
        if promise.cancelled():
            self._engine.kv.streams.release(stream, 'cancelled')
            self._device.wake()


def _hand_on(work: Future, promise: Future) -> None:
    """An error of the one to the other."""
    error = CancelledWork() if work.cancelled() else work.exception()
    if error is not None and promise.set_running_or_notify_cancel():
        promise.set_exception(error)


class CancelledWork(RuntimeError):
    """The engine's thread has ended."""

    def __init__(self) -> None:
        super().__init__('the engine is no longer there')
