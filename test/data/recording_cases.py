"""Recordings of one topic without a robot, and their content."""

import time

from mcap.records import Message

from embodied_kv.data.recording_file import PART, Channel, RecordingFile
from embodied_kv.data.recording_reader import Records

TOPIC = '/robot/words'
CHANNELS = (
    Channel(TOPIC, 'std_msgs/msg/String', 'string data\n'),
    Channel('/robot/state', 'std_msgs/msg/String', 'string data\n'),
)
MIB = 2**20


def begin(folder, most=4 * MIB, name='walk'):
    return RecordingFile(folder / f'{name}.mcap', most, CHANNELS, {'fps': '10'}, 'robot_type: x\n')


def part(file):
    return file.path.with_name(file.path.name + PART)


def messages(path):
    """Return all messages that can be read from the start of a file, as (stamp, data)."""
    return [(r.log_time, r.data) for r in Records(path) if isinstance(r, Message)]


def until(happened, seconds=60):
    """Wait until the condition holds; fail after so many seconds."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, 'it did not happen'
        time.sleep(0.01)
