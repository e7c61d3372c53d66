"""An export's memory does not grow with the recording; streaming leaves its result unchanged."""

import json
import subprocess
import sys
import tracemalloc
from itertools import count
from operator import itemgetter

import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest
from bag_cases import BEGIN, ROBOT, SECOND, Bag, stamped
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage

from embodied_kv.data import episodes, export
from embodied_kv.data.episodes import Cut, Episodes
from embodied_kv.data.lerobot_writer import Frames, LeRobotWriter
from embodied_kv.data.recording_reader import Recording
from embodied_kv.data.signals import unbroken
from embodied_kv.msg import ControlState

PEAK = """
import sys
from pathlib import Path
from embodied_kv.data.episodes import Cut
from embodied_kv.data.export import export
export([Path(sys.argv[1])], Path(sys.argv[2]), Cut())
print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))
"""


def jpeg(width):
    """Return a JPEG of incompressible 4:3 noise, about 0.9 bytes per pixel."""
    noise = np.random.default_rng(0).integers(0, 256, (width * 3 // 4, width, 3), np.uint8)
    return cv2.imencode('.jpg', noise, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes()


class NoisyBag(Bag):
    """A recording in which no two images are equal. seen: bytes of its images."""

    def __init__(self, path, width=160):
        super().__init__(path)
        self.jpeg, self.seen, self.number = jpeg(width), 0, count()

    def see(self, at, view='front', **_):
        data = self.jpeg + next(self.number).to_bytes(8, 'big')
        self.seen += len(data)
        message = CompressedImage(format='jpeg', data=data)
        message = stamped(message, BEGIN + round(at * SECOND))
        self.put(f'camera/{view}/image/compressed', at + 0.005, message)

    def write(self):
        """Write the waiting messages, which are no longer held afterwards."""
        for stamp, topic, message in sorted(self.waiting, key=itemgetter(0)):
            self.file.add(f'/r/{topic}', stamp, serialize_message(message))
        self.file.flush()
        self.waiting.clear()


def eventful(path):
    """Return a bag with instructions, a takeover, a stop, a silent camera and late joints."""
    bag = Bag(path).lives(16.0)
    for at, instruction in ((4.0, 'pick'), (7.0, ''), (7.5, 'place')):
        bag.tell(at, instruction)
    for at, state in (
        (5.0, ControlState.TAKEN_OVER),
        (6.0, ControlState.ARMED),
        (9.0, ControlState.STOPPED),
        (10.0, ControlState.ARMED),
    ):
        bag.control(at, state)
    silent = range(BEGIN + 11 * SECOND, BEGIN + 13 * SECOND)
    bag.waiting = [e for e in bag.waiting if 'wrist' not in e[1] or e[0] not in silent]
    for i in range(1, 16):
        bag.feel(i + 0.001, delay=0.3)
    return bag


def files(root):
    return sorted(path.relative_to(root) for path in root.rglob('*') if path.is_file())


def content(path):
    return json.loads(path.read_text()) if path.suffix == '.json' else pq.read_table(path)


def test_recording_that_is_streamed_gives_what_the_whole_one_gives(tmp_path, monkeypatch):
    again = eventful(tmp_path / 'again.mcap').waiting
    path = eventful(tmp_path / 'walk.mcap').finish(again)
    whole = export.export([path], tmp_path / 'whole', Cut())
    monkeypatch.setattr(episodes, 'PATIENCE', SECOND)
    monkeypatch.setattr(export, 'ROW_GROUP', 1000)
    assert export.export([path], tmp_path / 'streamed', Cut()) == whole
    assert whole.episodes > 6 and files(tmp_path / 'whole') == files(tmp_path / 'streamed')
    for name in files(tmp_path / 'whole'):
        assert content(tmp_path / 'whole' / name) == content(tmp_path / 'streamed' / name)
    data = pq.ParquetFile(tmp_path / 'streamed/data/chunk-000/file-000.parquet')
    assert data.num_row_groups > 4 * whole.episodes
    for group in range(data.num_row_groups):
        assert len(data.read_row_group(group)['episode_index'].unique()) == 1


@pytest.mark.parametrize('is_commanded', [True, False])
def test_no_more_of_the_signals_is_held_than_of_the_last_seconds(
    tmp_path, monkeypatch, is_commanded
):
    monkeypatch.setattr(episodes, 'PATIENCE', SECOND)
    held = []
    for seconds in (6.0, 24.0):
        bag = Bag(tmp_path / f'{seconds}.mcap').lives(seconds)
        bag.waiting = [e for e in bag.waiting if is_commanded or e[1] != 'action_chunk']
        for signals in unbroken(Recording(bag.finish())):
            found = Episodes(signals, Cut()).found
            assert sum(map(len, found)) >= 10 * seconds * is_commanded
            held.append({name: len(s.stamps) for name, s in signals.all_series().items()})
    assert held[0]['position elbow'] > 100 and held[0].keys() == held[1].keys()
    assert all(held[1][name] < 2 * number + 1 for name, number in held[0].items()), held


def test_memory_does_not_grow_with_the_length(tmp_path, monkeypatch):
    monkeypatch.setattr(episodes, 'PATIENCE', SECOND)
    monkeypatch.setattr(export, 'ROW_GROUP', 2**17)
    peaks, seen = [], []
    for seconds in (1.5, 4.0, 16.0):  # the first run loads what is loaded once
        bag = NoisyBag(tmp_path / f'{seconds}.mcap').lives(seconds)
        seen.append(bag.seen)
        path = bag.finish()
        del bag
        tracemalloc.start()
        export.export([path], tmp_path / f'out{seconds}', Cut())
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert seen[2] - seen[1] > 6e6
    assert peaks[2] - peaks[1] < 0.1 * (seen[2] - seen[1]), (peaks, seen)


def test_data_set_with_half_an_episode_is_refused(tmp_path):
    picture = jpeg(16)

    def part(task='reach', picture=picture):
        state, action = np.zeros((2, len(ROBOT.state.dimensions))), np.zeros((2, len(ROBOT.axes)))
        images = dict.fromkeys(ROBOT.contract.views, [picture] * 2)
        return Frames(task, state, action, np.zeros(2, bool), images)

    writer = LeRobotWriter(tmp_path / 'out', ROBOT)
    writer.add(part())
    with pytest.raises(ValueError, match='must have images of the size of the others'):
        writer.add_parts([part(), part(picture=jpeg(32))], 4)
    with pytest.raises(ValueError, match='a part of an episode that failed; export again'):
        writer.finish()


@pytest.mark.slow
def test_minutes_of_two_cameras_are_exported_within_300_mib(tmp_path):
    bag = NoisyBag(tmp_path / 'walk.mcap', width=300)
    for begin in range(120):
        bag.lives(1.0, begin=float(begin)).write()
    path = bag.finish()
    command = [sys.executable, '-c', PEAK, str(path), str(tmp_path / 'out')]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    assert bag.seen > 200e6 and int(run.stdout) / 1024 < 300
