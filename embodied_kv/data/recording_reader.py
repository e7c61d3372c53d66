"""Read a recording, record by record from the beginning, up to its first damage.

A file without its end is read, too; `damage` states what cannot be read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from mcap.exceptions import InvalidMagic, McapError
from mcap.records import Attachment, Channel, McapRecord, Message, Metadata, Schema
from mcap.stream_reader import CRCValidationError, StreamReader
from mcap_ros2.decoder import DecoderFactory
from zstandard import ZstdError

from embodied_kv.data.recording_file import CONTRACT, END, START
from embodied_kv.robots.contract import Contract
from embodied_kv.robots.reading import of_text
from embodied_kv.text import reason

DAMAGE = (McapError, CRCValidationError, ZstdError, struct.error, UnicodeDecodeError)
LARGEST = 2**30  # bytes of one record
FOREIGN = 'pass --contract FILE to read a bag of another recorder'
HEAD = 9  # bytes of the type and length of a record


class RecordingError(ValueError):
    """Raised for a file that is not a recording of the recorder node."""


class Records:
    """The readable records of a file, in order; each `iter` begins at the start.

    damage: where the last iteration stopped, and why; '' at the end of the file. is_short: whether
    only the record that was being written when the file was cut off is unreadable.
    """

    def __init__(self, path: Path) -> None:
        self._path, self.damage, self.is_short = path, '', False

    def __iter__(self) -> Iterator[McapRecord]:
        """Yield the records. Raises RecordingError for another format, OSError."""
        self.damage, self.is_short = '', False
        with self._path.open('rb') as stream:
            reader = StreamReader(stream, validate_crcs=True, record_size_limit=LARGEST)
            size, read = self._path.stat().st_size, 0
            try:
                for record in reader.records:
                    read = stream.tell()
                    yield record
            except DAMAGE as error:
                if read == 0 and isinstance(error, InvalidMagic):
                    raise RecordingError(f'{self._path} must be an MCAP file: {error}') from error
                if read < size:
                    self.is_short = _is_cut(stream, read, size)
                    self.damage = (
                        f'{self._path}: the last {size - read} of {size} bytes cannot be read: '
                        f'{reason(error)}'
                    )


def _is_cut(stream: BinaryIO, at: int, size: int) -> bool:
    """Return whether the record at a place ends after the file, by its length field."""
    stream.seek(at)
    head = stream.read(HEAD)
    length = int.from_bytes(head[1:], 'little')
    return len(head) < HEAD or size - at - HEAD < length <= LARGEST


@dataclass(frozen=True)
class RecordedMessage:
    """A message of a recording.

    topic: relative to the robot's namespace, unless the contract has its full name. stamp: time
    of its arrival, ns on the ROS clock.
    """

    topic: str
    stamp: int
    data: bytes
    decode: Callable[[bytes], Any]

    def read(self) -> Any:
        """Return the message, with its fields as attributes."""
        return self.decode(self.data)


class MessageSource(Protocol):
    """A recording with its contract.

    damage: what cannot be read, and why; '' for nothing. period: time (s) between two commands
    while the arm moves.
    """

    path: Path
    contract: Contract
    damage: str

    @property
    def period(self) -> float: ...

    def messages(self) -> Iterator[RecordedMessage]:
        """Yield the messages in the order of their arrival."""
        ...


class Recording:
    """A file of the recorder, opened. Raises RecordingError, OSError.

    contract: the contract of the robot. start, end: metadata of its beginning and end; end is None
    if it was cut off. damage: what cannot be read, and why; '' for nothing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_dir():
            raise RecordingError(
                f'{path} must be a file of the recorder node (got a folder); {FOREIGN}'
            )
        start: dict[str, str] | None = None
        self.end: dict[str, str] | None = None
        text = None
        found = Records(path)
        for record in found:
            if isinstance(record, Metadata) and record.name == START:
                start = record.metadata
            elif isinstance(record, Metadata) and record.name == END:
                self.end = record.metadata
            elif isinstance(record, Attachment) and record.name == CONTRACT:
                text = record.data.decode()
        self.damage = found.damage
        if start is None or text is None:
            raise RecordingError(
                f'{path} must contain a robot and its contract; use a recording of the recorder '
                f'node, or {FOREIGN}'
            )
        self.start = start
        self.contract: Contract = of_text(text, f'{path}:{CONTRACT}')

    @property
    def period(self) -> float:
        """Return the time (s) between two commands while the arm moves."""
        return 1 / float(self.start['rate'])

    def messages(self) -> Iterator[RecordedMessage]:
        """Yield the messages in the order of their arrival."""
        namespace = self.start['namespace'].rstrip('/') + '/'
        full = {topic for topic in self.contract.observed_topics if topic.startswith('/')}
        factory = DecoderFactory()
        schemas: dict[int, Schema] = {}
        topics: dict[int, tuple[str, Callable]] = {}
        for record in Records(self.path):
            if isinstance(record, Schema):
                schemas[record.id] = record
            elif isinstance(record, Channel):
                decode = factory.decoder_for(record.message_encoding, schemas[record.schema_id])
                if decode is None:
                    raise RecordingError(
                        f'{self.path}: messages of {record.topic} must be encoded as cdr (got '
                        f'{record.message_encoding}); give a recording of the node recorder'
                    )
                topic = record.topic
                if topic not in full and topic.removesuffix('/compressed') not in full:
                    topic = topic.removeprefix(namespace)
                topics[record.id] = topic, decode
            elif isinstance(record, Message):
                topic, decode = topics[record.channel_id]
                yield RecordedMessage(topic, record.log_time, record.data, decode)
