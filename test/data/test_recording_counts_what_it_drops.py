"""A message put into a queue is in the file or counted as dropped, whatever the disk does."""

import os
import threading
from collections import Counter

from recording_cases import MIB, TOPIC, begin, messages, part, until

from embodied_kv.data.recording_file import RecordingFile
from embodied_kv.data.recording_queue import RecordingQueue


def test_all_that_was_put_is_in_the_file(tmp_path):
    file = begin(tmp_path)
    queue = RecordingQueue(file, MIB)
    for i in range(500):
        queue.put(TOPIC, i, b'%d' % i)
    queue.close('enough')
    assert (queue.file.messages, queue.ended, queue.dropped) == (500, 'enough', Counter())
    assert messages(file.path) == [(i, b'%d' % i) for i in range(500)]


def test_messages_that_a_slow_disk_cannot_write_are_counted(tmp_path, monkeypatch):
    gate, add = threading.Event(), RecordingFile.add

    def slow(file, *message):
        assert gate.wait(60)
        add(file, *message)

    monkeypatch.setattr(RecordingFile, 'add', slow)
    file = begin(tmp_path)
    queue = RecordingQueue(file, 1000)
    for i in range(30):
        queue.put(TOPIC, i, bytes(100))
    assert queue.dropped == {TOPIC: 20} and 'queue_mib' in queue.fault
    gate.set()
    queue.close('enough')
    assert [stamp for stamp, _ in messages(file.path)] == [*range(10)]


def test_full_file_ends_the_recording_with_the_reason(tmp_path):
    file = begin(tmp_path, MIB // 8)
    queue = RecordingQueue(file, 8 * MIB)
    for i in range(100):
        queue.put(TOPIC, i, bytes([i]) * 10_000)
    queue.close('enough')
    assert 'disk_mib' in queue.ended
    read = messages(file.path)
    assert 0 < len(read) < 100 and len(read) + queue.dropped[TOPIC] == 100


def test_a_disk_that_refuses_ends_the_recording_and_leaves_what_there_is(tmp_path, monkeypatch):
    file = begin(tmp_path)
    empty = file.bytes
    queue = RecordingQueue(file, MIB)
    queue.put(TOPIC, 0, b'early')
    until(lambda: file.bytes > empty)  # flushed by the writer thread

    def refuse(data):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(file._stream, 'write', refuse)
    queue.put(TOPIC, 1, bytes(400_000))
    queue.close('enough')
    assert 'No space left' in queue.ended
    assert messages(part(file)) == [(0, b'early')]


def test_unconvertible_messages_are_counted_and_the_recording_continues(tmp_path):
    def convert(data):
        if data == b'bad':
            raise ValueError('no image')
        return data.upper()

    file = begin(tmp_path)
    queue = RecordingQueue(file, MIB)
    for data in (b'good', b'bad', b'fine'):
        queue.put(TOPIC, 0, data, convert)
    queue.close('enough')
    assert [data for _, data in messages(file.path)] == [b'GOOD', b'FINE']
    assert queue.dropped == {TOPIC: 1} and queue.fault == f'{TOPIC}: no image'


def test_messages_lost_by_the_middleware_are_counted(tmp_path):
    queue = RecordingQueue(begin(tmp_path), MIB)
    queue.lose(TOPIC, 3)
    queue.close('enough')
    assert queue.dropped == {TOPIC: 3}


def test_a_disk_that_recovers_leaves_no_hole(tmp_path, monkeypatch):
    file = begin(tmp_path)
    queue, empty = RecordingQueue(file, 8 * MIB), file.bytes
    queue.put(TOPIC, 0, b'early')
    until(lambda: file.bytes > empty)
    write, refusals = file._stream.write, [True]

    def refuse_once(data):
        if refusals:
            refusals.pop()
            raise OSError(28, 'No space left on device')
        return write(data)

    monkeypatch.setattr(file._stream, 'write', refuse_once)
    for i in range(1, 50):
        queue.put(TOPIC, i, os.urandom(40_000))
    until(lambda: queue.ended)
    queue.close('enough')
    assert not queue.is_whole and not file.path.exists()
    assert messages(part(file)) == [(0, b'early')]
    assert (queue.file.messages, queue.dropped) == (1, {TOPIC: 49})


def test_unexpected_error_of_a_conversion_drops_one_message(tmp_path):
    def convert(data):
        if data == b'bad':
            raise KeyError('encoding')
        return data

    file = begin(tmp_path)
    queue = RecordingQueue(file, MIB)
    for data in (b'bad', b'fine'):
        queue.put(TOPIC, 0, data, convert)
    queue.close('enough')
    assert [data for _, data in messages(file.path)] == [b'fine']
    assert queue.dropped == {TOPIC: 1} and 'encoding' in queue.fault


def test_unexpected_error_of_the_file_ends_the_recording_with_the_reason(tmp_path):
    file = begin(tmp_path)
    queue = RecordingQueue(file, MIB)
    queue.put('/unknown', 0, b'')
    until(lambda: queue.ended)
    queue.close('enough')
    assert 'KeyError' in queue.ended and queue.dropped == {'/unknown': 1}
    assert part(file).exists() and not queue.is_whole


def test_name_that_was_taken_in_the_meantime_is_not_overwritten(tmp_path):
    file = begin(tmp_path)
    queue = RecordingQueue(file, MIB)
    queue.put(TOPIC, 0, b'mine')
    file.path.write_bytes(b'of somebody else')
    queue.close('enough')
    assert file.path.read_bytes() == b'of somebody else'
    assert 'its end is missing' in queue.ended and not queue.is_whole
    assert messages(part(file)) == [(0, b'mine')] and not queue.dropped
