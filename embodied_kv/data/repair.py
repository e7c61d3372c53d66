"""`python -m embodied_kv.data.repair PART`: repair a recording that was cut off.

The command copies all readable records and adds the summary that other tools require. Then it
removes the part, unless more is unreadable than the record that was being written.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mcap.records import Attachment, Channel, Message, Metadata, Schema
from mcap.writer import CompressionType, Writer

from embodied_kv import storage
from embodied_kv.data.recording_file import CHUNK, END, PART, is_being_written
from embodied_kv.data.recording_reader import RecordingError, Records


def repair(part: Path) -> tuple[Path, int, str]:
    """Repair a part; return the whole file, the number of its messages, and the damage or ''.

    Raises RecordingError, OSError.
    """
    if not part.name.endswith(PART):
        raise RecordingError(f'the name of a part must end with {PART} (got {part})')
    path = part.with_name(part.name.removesuffix(PART))
    if path.exists():
        raise RecordingError(f'{path} must not exist; move it')
    if is_being_written(part):
        raise RecordingError(f'{part} is being written; end the recording first')
    read = Records(part)
    with storage.replaced(path) as new, open(new, 'xb', opener=storage.open_private) as stream:
        messages = _copy(read, Writer(stream, CHUNK, CompressionType.ZSTD))
    storage.sync(path.parent)
    damage = read.damage
    if damage and not read.is_short:
        damage = f'{damage}; the part is kept'
    else:
        part.unlink()
    return path, messages, damage


def _copy(read: Records, writer: Writer) -> int:
    writer.start(profile='ros2', library='embodied_kv')
    schemas: dict[int, int] = {}
    channels: dict[int, int] = {}
    messages, ended = 0, False
    for record in read:
        if isinstance(record, Schema) and record.id not in schemas:
            schemas[record.id] = writer.register_schema(record.name, record.encoding, record.data)
        elif isinstance(record, Channel) and record.id not in channels:
            channels[record.id] = writer.register_channel(
                record.topic, record.message_encoding, schemas[record.schema_id]
            )
        elif isinstance(record, Message):
            writer.add_message(
                channels[record.channel_id],
                record.log_time,
                record.data,
                record.publish_time,
                record.sequence,
            )
            messages += 1
        elif isinstance(record, Metadata):
            writer.add_metadata(record.name, record.metadata)
            ended |= record.name == END
        elif isinstance(record, Attachment):
            writer.add_attachment(
                record.create_time, record.log_time, record.name, record.media_type, record.data
            )
    if not ended:
        writer.add_metadata(END, {'end': 'it was cut off', 'messages': str(messages)})
    writer.finish()
    return messages


def main() -> None:
    parser = argparse.ArgumentParser(prog='repair', description=__doc__)
    parser.add_argument('part', type=Path, help=f'a file that ends with {PART}')
    try:
        path, messages, damage = repair(parser.parse_args().part)
    except (RecordingError, OSError) as error:
        parser.exit(1, f'{error}\n')
    print(f'{path}: {messages} messages')
    if damage:
        print(damage)


if __name__ == '__main__':
    main()
