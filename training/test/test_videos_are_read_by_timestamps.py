"""Frames of videos are found by the timestamps of their rows, wherever they are in a file."""

import os
import weakref

import av
import numpy as np
import pytest
from data_set_cases import FPS, LENGTHS, encode, level, scheduling, to_video, write
from robot_cases import ROBOT

from training.data import videos
from training.data.lerobot_checks import DataSetError
from training.data.lerobot_reader import LeRobotDataSet
from training.data.videos import read_frames

COUNT, GROUP = 60, 12  # frames of a video, and the keyframe interval
CODECS = {
    'av1': ('libsvtav1', {'g': 2, 'crf': 30, 'preset': 12}),  # as LeRobot encodes
    'h264': ('libx264', {'g': GROUP, 'bf': 3, 'preset': 'ultrafast', 'b-adapt': 0}),
    'hevc': ('libx265', {'preset': 'ultrafast', 'x265-params': f'keyint={GROUP}:log-level=none'}),
}


@pytest.fixture(scope='module', params=CODECS)
def video(request, tmp_path_factory):
    codec, options = CODECS[request.param]
    return encode(tmp_path_factory.mktemp('video') / 'file.mp4', COUNT, codec, **options)


def test_an_encoder_leaves_the_scheduling_as_it_was(video):
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    assert scheduling() == (os.SCHED_OTHER, 0)


def levels(frames):
    return [frame.mean() for frame in frames]


@pytest.mark.parametrize('first', [0, 1, 11, 12, 13, 29, 57])
def test_frames_of_each_codec_belong_to_their_times(video, first):
    frames = range(first, min(first + 5, COUNT))
    found = read_frames(video, [i / FPS for i in frames], FPS)
    assert found[0].shape == (48, 64, 3) and found[0].dtype == np.uint8
    np.testing.assert_allclose(levels(found), [level(i) for i in frames], atol=5)


def test_cost_depends_on_the_frames_and_not_on_their_place(video, monkeypatch):
    decoded = []

    def counted(*args):
        for entry in whole(*args):
            decoded.append(entry)
            yield entry

    whole = videos._from
    monkeypatch.setattr(videos, '_from', counted)
    read_frames(video, [i / FPS for i in range(COUNT - 5, COUNT)], FPS)
    assert len(decoded) <= 5 + 2 * GROUP < COUNT


def test_offset_of_less_than_half_a_period_gives_the_nearest_frame(video):
    times = [(i + 0.4) / FPS for i in range(20, 25)]
    found = read_frames(video, times, FPS)
    np.testing.assert_allclose(levels(found), [level(i) for i in range(20, 25)], atol=5)


def test_grey_video_has_one_channel(video):
    (found,) = read_frames(video, [0.5], FPS, channels=1)
    assert found.shape == (48, 64, 1) and abs(found.mean() - level(10)) < 12


@pytest.mark.parametrize(
    ('times', 'message'),
    [
        ([2.9, 2.95, 3.0], r'frame 2 must lie within 0\.0250 s of .* offset of -0\.05'),
        ([20.5 / FPS], r'frame 0 must lie within .* offset of [+-]0\.025'),
        ([30.0], r'frame 0 must lie .* offset of -27\.05'),
    ],
)
def test_time_without_a_frame_is_refused_with_the_offset(video, times, message):
    with pytest.raises(ValueError, match=message):
        read_frames(video, times, FPS)


def test_video_that_begins_late_is_refused(tmp_path):
    path = encode(tmp_path / 'late.mkv', 20, late=0.2)
    with pytest.raises(ValueError, match=r'frame 0 must lie .* offset of \+0\.2'):
        read_frames(path, [0.0, 0.05], FPS)


def test_video_of_half_the_rate_is_refused(tmp_path):
    path = encode(tmp_path / 'slow.mp4', 20, fps=FPS // 2)
    with pytest.raises(ValueError, match=r'frame 1 must lie .* offset of [+-]0\.05'):
        read_frames(path, [i / FPS for i in range(10)], FPS)


def test_codec_without_a_decoder_is_named_with_the_remedy(tmp_path):
    path = encode(tmp_path / 'odd.mp4', 3)
    path.write_bytes(path.read_bytes().replace(b'avc1', b'zzzz'))
    message = (
        r'codec of .*odd\.mp4 must be one that PyAV decodes \(got vvc\); .*lerobot-edit-dataset'
    )
    with pytest.raises(ValueError, match=message):
        read_frames(path, [0.0], FPS, codec='vvc')


@pytest.mark.parametrize(
    ('spoil', 'message'),
    [
        (lambda data: b'no video', 'must be a video that PyAV decodes'),
        (lambda data: data[: len(data) // 2], 'must contain a video stream .*download it again'),
        (lambda data: data[:100] + bytes(len(data) - 200) + data[-100:], 'download it again'),
        (None, 'must be a video file .*download it again'),
    ],
)
def test_damaged_or_missing_file_is_refused(tmp_path, spoil, message):
    path = encode(tmp_path / 'file.mp4', 10)
    data = path.read_bytes()
    path.unlink() if spoil is None else path.write_bytes(spoil(data))
    with pytest.raises(ValueError, match=message):
        read_frames(path, [0.0], FPS)


def test_file_without_pictures_is_refused(tmp_path):
    path = tmp_path / 'sound.mp4'
    with av.open(str(path), 'w') as sound:
        stream = sound.add_stream('aac', rate=8000, layout='mono')
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), 'fltp', 'mono')
        frame.rate = 8000
        sound.mux(stream.encode(frame))
        sound.mux(stream.encode(None))
    with pytest.raises(ValueError, match='must contain a video stream'):
        read_frames(path, [0.0], FPS)


# ------------------------------------------------------------------ data sets


def test_episodes_of_one_file_have_their_own_frames(tmp_path):
    root = write(tmp_path / 'set')
    to_video(root)
    data = LeRobotDataSet(root, ROBOT)
    for index, begin in enumerate((0, LENGTHS[0])):
        read = data.read(index)
        expected = [level(begin + i) for i in range(LENGTHS[index])]
        assert read.images['top'].shape == (LENGTHS[index], 48, 64, 3)
        np.testing.assert_allclose(levels(read.images['top']), expected, atol=5)
        np.testing.assert_array_equal(levels(read.images['side']), expected)


def test_each_image_is_converted_before_the_next_one_is_read(tmp_path):
    root = write(tmp_path / 'set')
    to_video(root)
    whole, seen = [], []

    def small(image):
        whole.append(weakref.ref(image))
        seen.append(sum(one() is not None for one in whole))
        return image[::8, ::8].copy()

    read = LeRobotDataSet(root, ROBOT).read(0, small)
    assert max(seen) <= 2, 'images of full size are kept'
    assert read.images['top'].shape == (LENGTHS[0], 6, 8, 3)
    assert read.sizes == {'top': (64, 48), 'side': (64, 48)}


def test_start_between_two_frames_is_refused_with_episode_and_offset(tmp_path):
    root = write(tmp_path / 'set')
    to_video(root, starts=[0.0, (LENGTHS[0] + 0.5) / FPS])
    data = LeRobotDataSet(root, ROBOT)
    assert len(data.read(0).state) == LENGTHS[0]
    with pytest.raises(DataSetError, match=r'episode 1: .*\.top: frame 0 .* offset of [+-]0\.025'):
        data.read(1)


def test_episode_that_begins_in_the_one_before_is_refused_when_opened(tmp_path):
    root = write(tmp_path / 'set')
    to_video(root, starts=[0.0, (LENGTHS[0] - 1) / FPS])
    with pytest.raises(DataSetError, match=r'from_timestamp of episode 1 .*an offset of -0\.05'):
        LeRobotDataSet(root, ROBOT)


def test_episode_that_goes_beyond_its_file_is_refused(tmp_path):
    root = write(tmp_path / 'set')
    to_video(root, starts=[0.0, (LENGTHS[0] + 2) / FPS])
    with pytest.raises(DataSetError, match=r'episode 1: .*\.top: frame 5 .* offset of -0\.05'):
        LeRobotDataSet(root, ROBOT).read(1)
