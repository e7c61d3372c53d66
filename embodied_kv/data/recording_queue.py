"""What is recorded, on its way to the disk: a bounded queue, and the thread that writes.

Knows when to drop, and counts what it drops. Does not know ROS. Whoever hands over waits for
nothing, so a slow disk delays nobody; a full queue or file costs messages, which are counted.
"""

from __future__ import annotations

import builtins
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from embodied_kv.data.recording_file import RecordingFile, RecordingFullError
from embodied_kv.text import reason

FLUSH = 1.0  # s of recording that a crash may cost


@dataclass(frozen=True)
class _Message:
    topic: str
    stamp: int
    data: bytes
    convert: Callable[[bytes], bytes] | None


class RecordingQueue:
    """Writes a file on a thread of its own, until `close`. From any thread.

    most: bytes of messages that may wait. messages: written. dropped: by topic, those that came
    and are not in the file. fault: why the last one of them could not be written; ended: why
    nothing is written any more, '' while it is.
    """

    def __init__(self, file: RecordingFile, most: int) -> None:
        self._file, self._most = file, most
        self._messages: deque[_Message] = deque()
        self._waiting, self._closing, self._is_whole = 0, '', False
        self._changed = threading.Condition()
        self.dropped: Counter[str] = Counter()
        self.fault = self.ended = ''
        self._thread = threading.Thread(target=self._write, name='recording', daemon=True)
        self._thread.start()

    @property
    def messages(self) -> int:
        """In the file."""
        return self._file.messages

    @property
    def is_whole(self) -> bool:
        """Whether the file was finished, and has its own name."""
        return self._is_whole

    @property
    def part(self) -> Path:
        """Where the file is as long as it is not whole."""
        return self._file.part

    def counted(self) -> dict[str, int]:
        """`dropped`, at one moment."""
        with self._changed:
            return dict(self.dropped)

    @property
    def bytes(self) -> int:
        """Of the file."""
        return self._file.bytes

    def put(
        self,
        topic: str,
        stamp: int,
        data: builtins.bytes,
        convert: Callable[[builtins.bytes], builtins.bytes] | None = None,
    ) -> None:
        """A message, which `convert` makes ready on the thread that writes.

        stamp: when it came, ns. What convert raises drops the message.
        """
        with self._changed:
            if self.ended or self._closing:
                self.dropped[topic] += 1
            elif self._waiting + len(data) > self._most:
                self._drop(topic, 'the disk is too slow: recorder.waiting_mib is full')
            else:
                self._messages.append(_Message(topic, stamp, data, convert))
                self._waiting += len(data)
                self._changed.notify()

    def lose(self, topic: str, count: int) -> None:
        """So many messages never came: the middleware says so."""
        with self._changed:
            self.dropped[topic] += count

    def close(self, why: str) -> None:
        """Everything that waits is written, and the file finished, or left as a part."""
        with self._changed:
            self._closing = why
            self._changed.notify()
        self._thread.join()

    # ------------------------------------------------------------------ the thread

    def _write(self) -> None:
        """Until the end, which is told whatever happens."""
        is_sound = False
        try:
            self._write_all()
            why, is_sound = self._closing, True
        except RecordingFullError:
            why, is_sound = 'it is full: recorder.disk_mib bounds what recordings take', True
        except OSError as error:
            why = f'the disk refuses: {reason(error)}'
        except Exception as error:  # nobody expected it
            why = f'it failed: {type(error).__name__}: {reason(error)}'
        with self._changed:
            self.dropped.update(message.topic for message in self._messages)
            self._messages.clear()
            self.ended, end = why, self._end(why)
        try:
            if is_sound:
                self._file.finish(end)
                self._is_whole = True
        except Exception as error:  # of the disk, or nobody expected it
            self.ended = f'{why}; its end is missing: {reason(error)}'
        if not self._is_whole:
            lost = self._file.abandon()
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
                self._file.flush()
                flushed = time.monotonic()

    def _add(self, message: _Message) -> None:
        """The message stays in the queue until it is in the file, or is dropped."""
        fault, data = '', message.data
        try:
            if message.convert is not None:
                data = message.convert(data)
        except Exception as error:  # of this one; the next may be sound
            fault = reason(error)
        if not fault:
            self._file.add(message.topic, message.stamp, data)
        with self._changed:
            self._messages.popleft()
            self._waiting -= len(message.data)
            if fault:
                self._drop(message.topic, fault)

    def _drop(self, topic: str, fault: str) -> None:
        self.dropped[topic] += 1
        self.fault = f'{topic}: {fault}'

    def _end(self, why: str) -> dict[str, str]:
        """Facts for the file; whoever asks has the lock."""
        dropped = {f'dropped {topic}': str(count) for topic, count in self.dropped.items()}
        return {'end': why, 'messages': str(self.messages), **dropped}
