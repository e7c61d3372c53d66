"""A recording has all that was put into it, or says what it has not; cut anywhere, it is read."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcap.reader import make_reader
from recording_cases import TOPIC, begin, messages, part, until

from embodied_kv.data.recording_file import CONTRACT, END, START
from embodied_kv.data.recording_reader import Recording, RecordingError
from embodied_kv.data.repair import repair

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
    wanted = []
    for i in range(40):
        wanted.append((i, bytes([i]) * 50))
        file.add(TOPIC, *wanted[-1])
        if i % 7 == 0:
            file.flush()
    file.finish({})
    size = file.path.stat().st_size
    os.truncate(file.path, int(size * at))
    found = messages(file.path)
    assert found == wanted[: len(found)]
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
    left = part(file)
    os.truncate(left, left.stat().st_size - at)
    wanted = messages(left)
    path, count = repair(left)
    assert not left.exists() and count == len(wanted) == len(messages(path))
    with path.open('rb') as stream:
        reader = make_reader(stream)
        assert [(m.log_time, m.data) for _, _, m in reader.iter_messages()] == wanted
        assert {m.name for m in reader.iter_metadata()} == {START, END}


def test_what_is_no_recording_is_refused_by_name(tmp_path):
    other = tmp_path / 'notes.mcap'
    other.write_bytes(b'not at all an MCAP file')
    with pytest.raises(RecordingError, match=r'notes\.mcap is no MCAP file'):
        Recording(other)


def test_nothing_overwrites_a_file_that_is_there(tmp_path):
    begin(tmp_path)
    with pytest.raises(FileExistsError):
        begin(tmp_path)
