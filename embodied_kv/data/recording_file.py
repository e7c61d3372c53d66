"""Write a recording: one MCAP file of bounded size that is readable however the process ends.

The name of an unfinished file ends with `.part`. A finished file has its summary and its final
name. After a crash, the part can be read up to its last whole chunk.

Source: the MCAP file format specification, https://mcap.dev/spec.
"""

from __future__ import annotations

import builtins
import errno
import io
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
CHUNK = 256 * 1024  # bytes of messages after which a chunk is written
MESSAGE = 96  # bytes of a message in addition to its data, with its entries in two indices
INDEX = 128  # bytes of a chunk in addition to its messages, with its entry in the summary
PER_CHANNEL = 64  # bytes of a channel in a chunk, with its entry in the summary
NO_LINKS = errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP  # of a file system such as exFAT
TAIL = 16 * 1024  # bytes of the end of a file in addition to the counted ones


@dataclass(frozen=True)
class Channel:
    """A topic of the file. kind: its message type. definition: that of the type, as ros2msg."""

    topic: str
    kind: str
    definition: str


class RecordingFullError(Exception):
    """Raised for a message that would exceed the bound of the file."""


class _Stream:
    """An unbuffered file, so that a killed process loses no bytes."""

    def __init__(self, path: Path) -> None:
        self._raw = io.FileIO(path, 'xb', opener=storage.open_private)
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

    path, part: its name once it is finished, and until then. messages: the number of messages,
    with those that wait for their chunk. After an OSError, only `abandon` may be called.

    Args:
        path: Name of the finished file.
        most: Largest size in bytes, with the summary.
        channels: All topics.
        start: Metadata of the beginning.
        contract: The contract of the robot, as YAML.
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
            # The annotation of `Writer` requires all of IO; it calls the methods of `_Stream`.
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
        """Return the number of written bytes."""
        return self._stream.size

    def add(self, topic: str, stamp: int, data: builtins.bytes) -> None:
        """Add a message as CDR. stamp: arrival (ns). Raises RecordingFullError, OSError."""
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
        """Write all messages to the medium. Raises OSError."""
        size = self._stream.size
        self._writer.flush()
        if self._stream.size > size:
            self._chunk_is_written()

    def finish(self, end: Mapping[str, str]) -> None:
        """Finish the file, without overwriting another. end: metadata. Raises OSError."""
        self.flush()
        self._writer.add_metadata(END, dict(end))
        self._writer.finish()
        self._stream.flush()
        self._whole = self._stream.size
        self._publish()
        storage.sync(self.path.parent)
        self._opened.close()

    def _publish(self) -> None:
        """Give the part its name. Raises OSError, FileExistsError if there is such a file."""
        try:
            os.link(self.part, self.path)  # a rename would overwrite
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            if self.path.exists():
                raise FileExistsError(errno.EEXIST, 'the file exists', str(self.path)) from error
            self.part.rename(self.path)
        else:
            self.part.unlink()

    def abandon(self) -> Counter[str]:
        """Leave the part, whole up to its last chunk; return the lost messages by topic."""
        with suppress(OSError):  # without it, readers stop at the incomplete chunk
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
    """Return whether a recorder of this machine writes a part. Raises OSError."""
    descriptor = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
    os.close(descriptor)
    with storage.locked(part, wait=False, file=True, own=False) as ours:
        return not ours
