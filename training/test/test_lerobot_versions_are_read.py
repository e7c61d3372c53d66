"""Data sets of LeRobot 2.0, 2.1 and 3.0 give the same arrays."""

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from data_set_cases import (
    FILE,
    LENGTHS,
    SIDE,
    TOP,
    change_info,
    encode,
    level,
    to_video,
    write,
)
from robot_cases import ROBOT, SIZES, episode

from embodied_kv.config import preset
from embodied_kv.data.lerobot_layout import STATS
from embodied_kv.data.lerobot_v21 import EPISODES, EPISODES_STATS, LeRobotV21Writer
from embodied_kv.data.lerobot_writer import LeRobotWriter
from training.data.lerobot_checks import DataSetError
from training.data.lerobot_files import DataSetFiles
from training.data.lerobot_reader import LeRobotDataSet
from training.run.frames import Frames, episodes_of
from training.run.statistics import measure

VIDEO = 'videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4'


def write_21(root):
    return write(root, LeRobotV21Writer)


def write_20(root):
    """Write version 2.0, which has the statistics of all episodes in one file."""
    write(root, LeRobotV21Writer)
    lines = (root / EPISODES_STATS).read_text().splitlines()
    (root / STATS).write_text(json.dumps(json.loads(lines[0])['stats']))
    (root / EPISODES_STATS).unlink()
    change_info(root, lambda info: info.update(codebase_version='v2.0'))
    return root


@pytest.mark.parametrize('older', [write_20, write_21])
def test_older_versions_equal_the_present_one(tmp_path, older):
    new = LeRobotDataSet(write(tmp_path / 'new'), ROBOT)
    old = LeRobotDataSet(older(tmp_path / 'old'), ROBOT)
    assert old.info['codebase_version'] != new.info['codebase_version'] == 'v3.0'
    assert old.lengths == new.lengths == LENGTHS
    for index in range(len(new)):
        one, other = old.read(index), new.read(index)
        assert one.tasks == other.tasks
        np.testing.assert_array_equal(one.state, other.state)
        np.testing.assert_array_equal(one.action, other.action)
        for view in SIZES:
            np.testing.assert_array_equal(one.images[view], other.images[view])


def test_optional_columns_of_version_21_are_read(tmp_path):
    found = {}
    for kind in (LeRobotWriter, LeRobotV21Writer):
        writer = kind(tmp_path / kind.__name__, ROBOT)
        writer.add(episode(1, speaking=True))
        writer.finish()
        data = LeRobotDataSet(writer.root, ROBOT)
        assert data.objects == ('red square',) and data.has_subtasks
        found[kind] = data.read(0)
    new, old = found.values()
    assert old.subtasks == new.subtasks and len({*old.subtasks}) == 2
    np.testing.assert_array_equal(old.positions['red square'], new.positions['red square'])
    assert old.pixels.keys() == new.pixels.keys()


def test_video_of_each_episode_is_read(tmp_path):
    root = write_21(tmp_path / 'set')
    for index, length in enumerate(LENGTHS):
        names = {'episode_chunk': 0, 'episode_index': index}
        encode(root / VIDEO.format(video_key=TOP, **names), length)
        data = root / f'data/chunk-000/episode_{index:06d}.parquet'
        pq.write_table(pq.read_table(data).drop_columns([TOP]), data)

    def described(info):
        info['features'][TOP]['dtype'] = 'video'
        info['video_path'] = VIDEO

    change_info(root, described)
    images = LeRobotDataSet(root, ROBOT).read(1).images['top']
    np.testing.assert_allclose(
        images.mean((1, 2, 3)), [level(i) for i in range(LENGTHS[1])], atol=5
    )


@pytest.mark.parametrize('kind', [LeRobotWriter, LeRobotV21Writer])
def test_quantiles_are_measured_without_statistics(tmp_path, kind):
    root = write(tmp_path / 'set', kind)
    for name in (STATS, EPISODES_STATS):
        (root / name).unlink(missing_ok=True)
    data = LeRobotDataSet(root, ROBOT)
    config = ROBOT.adapted(preset('tabletop_small'))
    frames = Frames.read(list(episodes_of([data])), config, [])
    relative = np.array([d.relative for d in ROBOT.actions.dimensions])
    low, high = np.percentile(frames.state, (1.0, 99.0), axis=0)
    scaled = measure(frames, config, relative).state(np.stack([low, high]))
    np.testing.assert_allclose(scaled, [[-1.0] * 5, [1.0] * 5], atol=1e-5)


@pytest.mark.parametrize(
    ('spoil', 'message'),
    [
        (lambda root: (root / EPISODES).unlink(), 'episodes.jsonl cannot be read'),
        (lambda root: (root / EPISODES).write_text('{"episode_index": 0'), 'jsonl is damaged'),
        (lambda root: (root / EPISODES).write_text('7\n'), 'is damaged'),
        (lambda root: (root / EPISODES).write_text(''), 'must contain an episode'),
        (lambda root: (root / 'meta/tasks.jsonl').write_text('{"task": "a"}'), 'is damaged'),
        (lambda root: shutil.rmtree(root / 'data'), 'cannot be read'),
        (
            lambda root: change_info(root, lambda info: info.update(data_path='../{file_index}')),
            'names no file',
        ),
        (
            lambda root: change_info(root, lambda info: info.update(codebase_version='v1.6')),
            r'version of .* must be one of v2.0, v2.1, v3.0 \(got v1.6\)',
        ),
        (lambda root: change_info(root, lambda info: info.update(total_episodes=3)), '3 in'),
    ],
)
def test_damaged_older_data_set_is_refused(tmp_path, spoil, message):
    root = write_21(tmp_path / 'set')
    spoil(root)
    with pytest.raises(DataSetError, match=message) as refused:
        LeRobotDataSet(root, ROBOT)
    assert str(root) in str(refused.value) and '\n' not in str(refused.value)


def test_numbers_of_a_file_are_read_once_for_all_its_episodes(tmp_path, monkeypatch):
    root, read = write(tmp_path / 'set'), []
    whole = DataSetFiles.table

    def counted(self, path, **options):
        read.append(path)
        return whole(self, path, **options)

    to_video(root, column=TOP)
    to_video(root, column=SIDE)
    monkeypatch.setattr(DataSetFiles, 'table', counted)
    data = LeRobotDataSet(root, ROBOT)
    assert [len(data.read(i).state) for i in (0, 1, 0)] == [*LENGTHS, LENGTHS[0]]
    assert read.count(root / FILE) == 1


def test_cameras_that_the_contract_lacks_are_ignored(tmp_path):
    root = write(tmp_path / 'set')

    def described(info):
        info['features'] |= {'observation.images.third': info['features'][SIDE]}

    change_info(root, described)
    assert LeRobotDataSet(root, ROBOT).read(0).images.keys() == {'top', 'side'}
