"""A bounded queue of messages to record, and the thread that writes them.

Callers never wait for the disk. Messages that do not fit into the queue or the file are dropped
and counted.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from embodied_kv.data.recording_file import RecordingFile, RecordingFullError
from embodied_kv.text import reason

FLUSH = 1.0  # s of recording that a crash may lose


@dataclass(frozen=True)
class _Message:
    topic: str
    stamp: int
    data: bytes
    convert: Callable[[bytes], bytes] | None


class RecordingQueue:
    """Writes a file on another thread, until `close`. Thread-safe.

    is_whole: whether the file is finished and has its final name. dropped: number of messages that
    are not in the file, by topic. fault: why the last one of them was dropped. ended: why writing
    has ended; '' before that.

    Args:
        file: The file.
        most: Largest size (bytes) of the messages that wait.
    """

    def __init__(self, file: RecordingFile, most: int) -> None:
        self.file, self._most = file, most
        self._messages: deque[_Message] = deque()
        self._waiting, self._closing, self.is_whole = 0, '', False
        self._changed = threading.Condition()
        self.dropped: Counter[str] = Counter()
        self.fault = self.ended = ''
        self._thread = threading.Thread(target=self._write, name='recording', daemon=True)
        self._thread.start()

    def counted(self) -> dict[str, int]:
        """Return a copy of `dropped`."""
        with self._changed:
            return dict(self.dropped)

    def put(
        self,
        topic: str,
        stamp: int,
        data: bytes,
        convert: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """Put a message into the queue.

        stamp: time of its arrival (ns). convert: converts the data on the writing thread; its
        exception drops the message.
        """
        with self._changed:
            if self.ended or self._closing:
                self.dropped[topic] += 1
            elif self._waiting + len(data) > self._most:
                self._drop(topic, 'the disk is too slow; recorder.queue_mib is full')
            else:
                self._messages.append(_Message(topic, stamp, data, convert))
                self._waiting += len(data)
                self._changed.notify()

    def lose(self, topic: str, count: int) -> None:
        """Count messages that the middleware has lost."""
        with self._changed:
            self.dropped[topic] += count

    def close(self, why: str) -> None:
        """Write all messages that wait, and finish the file or leave it as a part."""
        with self._changed:
            self._closing = why
            self._changed.notify()
        self._thread.join()

    # ------------------------------------------------------------------ the thread

    def _write(self) -> None:
        is_sound = False
        try:
            self._write_all()
            why, is_sound = self._closing, True
        except RecordingFullError:
            why, is_sound = 'recordings have reached the size recorder.disk_mib', True
        except OSError as error:
            why = f'the file cannot be written: {reason(error)}'
        except Exception as error:  # unexpected
            why = f'writing failed: {type(error).__name__}: {reason(error)}'
        with self._changed:
            self.dropped.update(message.topic for message in self._messages)
            self._messages.clear()
            self.ended, end = why, self._end(why)
        try:
            if is_sound:
                self.file.finish(end)
                self.is_whole = True
        except Exception as error:  # of the disk, or unexpected
            self.ended = f'{why}; its end is missing: {reason(error)}'
        if not self.is_whole:
            lost = self.file.abandon()
            with self._changed:
                self.dropped.update(lost)

    def _write_all(self) -> None:
        flushed = time.monotonic()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._messages or self._closing, FLUSH)
                if self._closing and not self._messages:
                    return
                message = self._messages[0] if self._messages else None
            if message is not None:
                self._add(message)
            if time.monotonic() - flushed > FLUSH:
                self.file.flush()
                flushed = time.monotonic()

    def _add(self, message: _Message) -> None:
        """Write a message, which stays in the queue until it is in the file or dropped."""
        fault, data = '', message.data
        try:
            if message.convert is not None:
                data = message.convert(data)
        except Exception as error:  # of this message; the next one may be valid
            fault = reason(error)
        if not fault:
            self.file.add(message.topic, message.stamp, data)
        with self._changed:
            self._messages.popleft()
            self._waiting -= len(message.data)
            if fault:
                self._drop(message.topic, fault)

    def _drop(self, topic: str, fault: str) -> None:
        self.dropped[topic] += 1
        self.fault = f'{topic}: {fault}'

    def _end(self, why: str) -> dict[str, str]:
        """Return the metadata of the end; the caller holds the lock."""
        dropped = {f'dropped {topic}': str(count) for topic, count in self.dropped.items()}
        return {'end': why, 'messages': str(self.file.messages), **dropped}
