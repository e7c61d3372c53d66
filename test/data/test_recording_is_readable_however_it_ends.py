"""A recording has all its messages or reports what is missing; a file cut anywhere is readable."""

import errno
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcap.reader import make_reader
from mcap.writer import Writer
from recording_cases import CHANNELS, MIB, TOPIC, begin, messages, part, until

from embodied_kv.data.recording_file import CONTRACT, END, START, RecordingFile
from embodied_kv.data.recording_reader import Recording, RecordingError, Records
from embodied_kv.data.repair import repair
from embodied_kv.robots.reading import load, to_text

HERE = Path(__file__).parent
KILLED = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(HERE)!r})
from recording_cases import TOPIC, begin
file = begin(Path(sys.argv[1]))
for i in range(100):
    file.add(TOPIC, i, b'x' * 100)
file.flush()
for i in range(100, 120):
    file.add(TOPIC, i, b'y' * 100)
print('flushed', flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize('exists', [True, False])
def test_a_file_system_without_hard_links_keeps_recordings(tmp_path, monkeypatch, exists):
    def refuse(*_):
        raise OSError(errno.EPERM, 'no links')

    monkeypatch.setattr(os, 'link', refuse)
    file = begin(tmp_path)
    file.add(TOPIC, 1, b'x')
    if exists:
        file.path.write_bytes(b'another recording')
        with pytest.raises(FileExistsError):
            file.finish({})
        assert file.path.read_bytes() == b'another recording' and part(file).exists()
    else:
        file.finish({})
        assert file.path.exists() and not part(file).exists()


def test_a_finished_file_has_messages_contract_and_both_ends(tmp_path):
    file = begin(tmp_path)
    for i in range(10):
        file.add(TOPIC, i, bytes([i]) * 1000)
    file.finish({'end': 'it was asked for'})
    assert not part(file).exists()
    with file.path.open('rb') as stream:
        reader = make_reader(stream)
        read = [(m.log_time, m.data) for _, _, m in reader.iter_messages()]
        assert read == [(i, bytes([i]) * 1000) for i in range(10)]
        (attachment,) = reader.iter_attachments()
        assert (attachment.name, attachment.data) == (CONTRACT, b'robot_type: x\n')
        said = {m.name: m.metadata for m in reader.iter_metadata()}
        assert said == {START: {'fps': '10'}, END: {'end': 'it was asked for'}}


def test_a_killed_process_leaves_what_was_flushed(tmp_path):
    run = [sys.executable, '-c', KILLED, str(tmp_path)]
    said = tmp_path / 'said'
    with said.open('w') as out, subprocess.Popen(run, stdout=out) as process:
        try:
            until(lambda: said.read_text() == 'flushed\n' or process.poll() is not None, 180)
            assert process.poll() is None
        finally:
            process.kill()
    said.unlink()
    (left,) = tmp_path.iterdir()
    assert left.name == 'walk.mcap.part'
    assert messages(left) == [(i, b'x' * 100) for i in range(100)]


@settings(max_examples=20, deadline=None)
@given(at=st.floats(0, 1))
def test_cut_anywhere_the_messages_before_are_read_in_order(tmp_path_factory, at):
    folder = tmp_path_factory.mktemp('cut')
    file = begin(folder)
    wanted, whole = [], []  # whole: number of messages, and the file size that contains them
    for i in range(40):
        wanted.append((i, bytes([i]) * 50))
        file.add(TOPIC, *wanted[-1])
        if i % 7 == 0:
            file.flush()
            whole.append((len(wanted), file.bytes))
    file.finish({})
    size = file.path.stat().st_size
    os.truncate(file.path, int(size * at))
    found = messages(file.path)
    assert found == wanted[: len(found)]
    assert len(found) >= max((n for n, end in whole if end <= size * at), default=0)
    if at == 1:
        assert found == wanted


@settings(max_examples=8, deadline=None)
@given(at=st.integers(1, 3000))
def test_repaired_a_part_is_whole_and_has_what_could_be_read(tmp_path_factory, at):
    folder = tmp_path_factory.mktemp('part')
    file = begin(folder)
    for i in range(40):
        file.add(TOPIC, i, random.Random(i).randbytes(50))
        if i % 5 == 4:
            file.flush()
    file.abandon()
    left = part(file)
    os.truncate(left, left.stat().st_size - at)
    wanted, read = messages(left), Records(left)
    assert all(read)
    damaged = read.damage
    path, count, damage = repair(left)
    assert not left.exists() and damage == damaged and count == len(wanted) == len(messages(path))
    with path.open('rb') as stream:
        reader = make_reader(stream)
        assert [(m.log_time, m.data) for _, _, m in reader.iter_messages()] == wanted
        assert {m.name for m in reader.iter_metadata()} == {START, END}


def test_what_is_no_recording_is_refused_by_name(tmp_path):
    other = tmp_path / 'notes.mcap'
    other.write_bytes(b'not at all an MCAP file')
    with pytest.raises(RecordingError, match=r'notes\.mcap must be an MCAP file'):
        Recording(other)


def test_messages_of_another_encoding_are_refused(tmp_path, monkeypatch):
    register = Writer.register_channel
    monkeypatch.setattr(
        Writer,
        'register_channel',
        lambda self, topic, _, schema: register(self, topic, '', schema),
    )
    path, start = tmp_path / 'walk.mcap', {'namespace': '/robot'}
    file = RecordingFile(path, 4 * MIB, CHANNELS, start, to_text(load('tabletop')))
    file.add(TOPIC, 0, b'words')
    file.finish({})
    with pytest.raises(RecordingError, match='messages of /robot/words must be encoded as cdr'):
        list(Recording(path).messages())


def test_nothing_overwrites_a_file_that_is_there(tmp_path):
    begin(tmp_path)
    with pytest.raises(FileExistsError):
        begin(tmp_path)


def test_a_header_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    def refuse(writer, **_):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(Writer, 'start', refuse)
    open_before = len(os.listdir('/proc/self/fd'))
    with pytest.raises(OSError, match='No space'):
        begin(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir('/proc/self/fd')) <= open_before


def test_a_part_that_is_being_written_is_not_repaired(tmp_path):
    file = begin(tmp_path)
    with pytest.raises(RecordingError, match='is being written'):
        repair(part(file))
    file.abandon()
    assert repair(part(file))[1] == 0


def test_damage_in_the_middle_is_told_and_the_part_kept(tmp_path):
    file = begin(tmp_path)
    ends = []
    for i in range(3):
        file.add(TOPIC, i, random.Random(i).randbytes(5000))
        file.flush()
        ends.append(file.bytes)
    file.abandon()
    with part(file).open('r+b') as stream:
        stream.seek((ends[0] + ends[1]) // 2)
        stream.write(bytes(100))
    path, count, damage = repair(part(file))
    assert count == 1 == len(messages(path)) and part(file).exists()
    assert f'of {ends[2]} bytes cannot be read' in damage and 'the part is kept' in damage
