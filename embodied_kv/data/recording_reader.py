"""A recording as it is read: record by record from the beginning, as far as it is whole.

Knows the format. Does not know what the messages mean. A file without its end is read all the
same; what cannot be read of it is told.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcap.exceptions import InvalidMagic, McapError
from mcap.records import Attachment, Channel, McapRecord, Message, Metadata, Schema
from mcap.stream_reader import CRCValidationError, StreamReader
from mcap.writer import MCAP0_MAGIC
from mcap_ros2.decoder import DecoderFactory
from zstandard import ZstdError

from embodied_kv.data.recording_file import CONTRACT, END, START
from embodied_kv.robots.contract import Contract
from embodied_kv.robots.reading import of_text

DAMAGE = (McapError, CRCValidationError, ZstdError, struct.error, UnicodeDecodeError)
LARGEST = 2**30  # bytes of one record


class RecordingError(ValueError):
    """A file that is no recording of ours; says what to do."""


def records(path: Path) -> Iterator[McapRecord]:
    """All that can be read of a file. Raises RecordingError where it is no MCAP, OSError."""
    with path.open('rb') as stream:
        reader = StreamReader(stream, validate_crcs=True, record_size_limit=LARGEST)
        try:
            yield from reader.records
        except InvalidMagic as error:
            if stream.tell() <= len(MCAP0_MAGIC):  # else it is the one at the end
                raise RecordingError(f'{path} is no MCAP file: {error}') from error
        except DAMAGE:
            return


@dataclass(frozen=True)
class RecordedMessage:
    """topic: relative to the robot's namespace. stamp: when it came, ns on the ROS clock."""

    topic: str
    stamp: int
    data: bytes
    decode: Callable[[bytes], Any]

    def read(self) -> Any:
        """The message, its fields as attributes."""
        return self.decode(self.data)


class Recording:
    """A file of the recorder, opened.

    contract: of the robot. start: facts of its beginning; end: those of its end, None where it
    was cut off. Raises RecordingError, OSError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.start: dict[str, str] | None = None
        self.end: dict[str, str] | None = None
        text = None
        for record in records(path):
            if isinstance(record, Metadata) and record.name == START:
                self.start = record.metadata
            elif isinstance(record, Metadata) and record.name == END:
                self.end = record.metadata
            elif isinstance(record, Attachment) and record.name == CONTRACT:
                text = record.data.decode()
        if self.start is None or text is None:
            raise RecordingError(
                f'{path} says nothing of a robot: give a recording of the node recorder'
            )
        self.contract: Contract = of_text(text, f'{path}:{CONTRACT}')

    def messages(self) -> Iterator[RecordedMessage]:
        """In the order in which they came."""
        namespace = self.start['namespace'].rstrip('/') + '/'
        factory = DecoderFactory()
        schemas: dict[int, Schema] = {}
        topics: dict[int, tuple[str, Callable]] = {}
        for record in records(self.path):
            if isinstance(record, Schema):
                schemas[record.id] = record
            elif isinstance(record, Channel):
                decode = factory.decoder_for(record.message_encoding, schemas[record.schema_id])
                topics[record.id] = record.topic.removeprefix(namespace), decode
            elif isinstance(record, Message):
                topic, decode = topics[record.channel_id]
                yield RecordedMessage(topic, record.log_time, record.data, decode)
