"""A recording as it is written: one MCAP file, bounded, and readable however it ends.

Knows the format and its bytes. Does not know ROS, a robot's topics, or threads. While it is
written, a file ends with `.part`; finished, it has its summary and its own name. What a crash
leaves ends with `.part` and can be read up to its last whole chunk.

Source: the MCAP file format specification, https://mcap.dev/spec.
"""

from __future__ import annotations

import builtins
import os
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from mcap.writer import CompressionType, Writer

from embodied_kv import storage

PART = '.part'
START, END, CONTRACT = 'embodied_kv.start', 'embodied_kv.end', 'contract.yaml'
CHUNK = 256 * 1024  # bytes of messages, after which a chunk is written without being asked for
MESSAGE = 96  # bytes of a message beside its data, its place in two indices included
INDEX = 128  # bytes of a chunk beside its messages, and of its line in the summary
PER_CHANNEL = 64  # bytes of a channel in both
TAIL = 16 * 1024  # bytes that the end of a file may take beside what is counted


@dataclass(frozen=True)
class Channel:
    """A topic of the file. kind: its message type. definition: of that type, as ros2msg."""

    topic: str
    kind: str
    definition: str


class RecordingFullError(Exception):
    """The bound does not leave room for this message."""


class _Stream:
    """All bytes of a write, at once: a killed process has lost none of them."""

    def __init__(self, path: Path) -> None:
        self._raw = open(path, 'xb', buffering=0, opener=storage.open_private)
        self.size = 0

    def write(self, data: bytes) -> int:
        rest = memoryview(data)
        while rest:
            rest = rest[self._raw.write(rest) :]
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        os.fdatasync(self._raw.fileno())

    def end_at(self, size: int) -> None:
        self._raw.truncate(size)
        self.size = size

    def close(self) -> None:
        self._raw.close()


class RecordingFile:
    """A new file, locked while it is written (`is_being_written`).

    path: its name once it is finished; part: until then. most: bytes, summary included. channels:
    all that there will be. start: facts of its beginning. contract: of the robot, as YAML.
    messages: in it, those that wait for their chunk included. It is locked while it is written.
    Raises OSError, after which nothing but `abandon` may follow.
    """

    def __init__(
        self,
        path: Path,
        most: int,
        channels: tuple[Channel, ...],
        start: Mapping[str, str],
        contract: str,
    ) -> None:
        self.path, self._most, self.messages = path, most, 0
        self.part = path.with_name(path.name + PART)
        self._stream = _Stream(self.part)
        with ExitStack() as opened:
            opened.callback(self._stream.close)
            failed = opened.enter_context(ExitStack())
            failed.callback(self.part.unlink)
            opened.enter_context(storage.locked(self.part, wait=False, file=True))
            # The annotation of `Writer` asks for all of IO; it calls what `_Stream` has.
            stream = self._stream
            self._writer = Writer(stream, CHUNK, CompressionType.ZSTD)  # type: ignore[arg-type]
            self._writer.start(profile='ros2', library='embodied_kv')
            self._writer.add_metadata(START, dict(start))
            self._writer.add_attachment(0, 0, CONTRACT, 'application/yaml', contract.encode())
            self._ids = {c.topic: self._register(c) for c in channels}
            failed.pop_all()
            self._opened = opened.pop_all()
        self._whole = self._stream.size  # bytes until the last whole chunk
        self._since: Counter[str] = Counter()  # messages by topic since then
        self._per_chunk = INDEX + PER_CHANNEL * len(channels)
        described = sum(len(c.definition) + len(c.topic) + len(c.kind) for c in channels)
        self._reserved = TAIL + described + self._per_chunk
        self._waiting = described  # bytes of the chunk that is not written yet, at most

    @property
    def bytes(self) -> int:
        """That are written."""
        return self._stream.size

    def add(self, topic: str, stamp: int, data: builtins.bytes) -> None:
        """A message as CDR. stamp: when it came, ns. Raises RecordingFullError, OSError."""
        taken = len(data) + MESSAGE
        if self._stream.size + self._waiting + self._reserved + taken > self._most:
            raise RecordingFullError
        size = self._stream.size
        self._waiting += taken
        self._writer.add_message(self._ids[topic], stamp, data, stamp, self.messages)
        self.messages += 1
        self._since[topic] += 1
        if self._stream.size > size:
            self._chunk_is_written()

    def flush(self) -> None:
        """What came until now is in the file, and on the medium. Raises OSError."""
        size = self._stream.size
        self._writer.flush()
        if self._stream.size > size:
            self._chunk_is_written()

    def finish(self, end: Mapping[str, str]) -> None:
        """Nothing more comes. end: facts of its end. Raises OSError; no file is overwritten."""
        self.flush()
        self._writer.add_metadata(END, dict(end))
        self._writer.finish()
        self._stream.flush()
        self._whole = self._stream.size
        os.link(self.part, self.path)  # a rename would overwrite
        self.part.unlink()
        storage.sync(self.path.parent)
        self._opened.close()

    def abandon(self) -> Counter[str]:
        """The part is left, whole until its last chunk. Returns by topic what is not in it."""
        with suppress(OSError):  # else what reads it stops there
            self._stream.end_at(self._whole)
        self._opened.close()
        lost, self._since = self._since, Counter()
        self.messages -= lost.total()
        return lost

    def _chunk_is_written(self) -> None:
        self._since.clear()
        self._waiting, self._whole = 0, self._stream.size
        self._reserved += self._per_chunk

    def _register(self, channel: Channel) -> int:
        schema = self._writer.register_schema(channel.kind, 'ros2msg', channel.definition.encode())
        return self._writer.register_channel(channel.topic, 'cdr', schema)


def is_being_written(part: Path) -> bool:
    """Whether a recorder of this machine has it. Raises OSError where there is none."""
    descriptor = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
    os.close(descriptor)
    with storage.locked(part, wait=False, file=True, own=False) as ours:
        return not ours
