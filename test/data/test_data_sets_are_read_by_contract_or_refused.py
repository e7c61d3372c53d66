"""A LeRobot v3 data set is read into arrays by contract; what does not fit is refused by name."""

import json
import shutil

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from bag_cases import CONTRACT, ROBOT, Bag

from embodied_kv.data.episodes import Cut
from embodied_kv.data.export import export
from embodied_kv.data.lerobot_layout import ACTION, DATA, EPISODES, INFO, STATE, TASKS
from embodied_kv.data.lerobot_writer import LeRobotWriter
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.reading import parse, to_text
from training.data.lerobot_checks import DataSetError
from training.data.lerobot_reader import LeRobotDataSet

FILE = DATA.format(chunk_index=0, file_index=0)
META = EPISODES.format(chunk_index=0, file_index=0)
FRONT = 'observation.images.front'


@pytest.fixture(scope='module')
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp('data_set')
    bag = Bag(folder / 'one.mcap').lives(5.0)
    bag.tell(2.5, 'pick')
    export([bag.finish()], folder / 'out', Cut())
    return folder / 'out'


@pytest.fixture
def root(exported, tmp_path):
    """Return a copy of the data set that a test may damage."""
    return shutil.copytree(exported, tmp_path / 'copy')


def refused(root, robot=ROBOT):
    with pytest.raises(DataSetError) as error:
        LeRobotDataSet(root, robot)
    message = str(error.value)
    assert str(root) in message and '\n' not in message
    return message


def change_info(root, change):
    info = json.loads((root / INFO).read_text())
    change(info)
    (root / INFO).write_text(json.dumps(info))


def change_column(root, name, change):
    """Change a column of the data file. change: maps the list of its values to a new one."""
    table = pq.read_table(root / FILE)
    values = table[name].to_pylist()
    values = change(values)
    kind = table.schema.field(name).type
    if pa.types.is_fixed_size_list(kind):
        kind = pa.list_(kind.value_type)
    place = table.column_names.index(name)
    pq.write_table(table.set_column(place, name, pa.array(values, kind)), root / FILE)


def drop(path, name):
    pq.write_table(pq.read_table(path).drop_columns([name]), path)


def test_a_folder_may_be_named_by_a_string(exported, tmp_path):
    assert len(LeRobotDataSet(str(exported), ROBOT)) == len(LeRobotDataSet(exported, ROBOT))
    assert LeRobotWriter(str(tmp_path / 'new'), ROBOT).root == tmp_path / 'new'
    assert 'no LeRobot data set' in refused(str(tmp_path))


def test_what_was_exported_comes_back(exported):
    found = LeRobotDataSet(exported, ROBOT)
    table = pq.read_table(exported / FILE)
    assert len(found) == 2 and sum(found.lengths) == len(table)
    episodes = [found.read(i) for i in range(2)]
    np.testing.assert_array_equal(
        np.concatenate([e.state for e in episodes]), np.stack(table[STATE].to_numpy())
    )
    np.testing.assert_array_equal(
        np.concatenate([e.action for e in episodes]), np.stack(table[ACTION].to_numpy())
    )
    for episode, length, task in zip(episodes, found.lengths, ('reach', 'pick'), strict=True):
        assert set(episode.tasks) == {task} and len(episode.tasks) == length
        assert episode.images.keys() == {'front', 'wrist'}
        assert episode.images['front'].shape == (length, 12, 16, 3)


def test_a_missing_view_is_refused(root):
    change_info(root, lambda info: info['features'].pop(FRONT))
    message = refused(root)
    assert 'columns of the data set must contain observation.images.front of tabletop' in message
    assert 'observation.images.wrist' in message


def test_another_rate_is_refused(root):
    change_info(root, lambda info: info.update(fps=30))
    assert 'fps of the data set must be that of tabletop, 10 (got 30)' in refused(root)


def test_other_dimensions_are_refused(root):
    values = yaml.safe_load(to_text(CONTRACT))
    for sources in (values['observations'][STATE], values['actions'][ACTION]):
        sources.pop()  # the gripper's source
    del values['limits']['gripper']
    armless = Embodiment.of(parse(values, 'armless'))
    assert 'observation.state must have 6 numbers, as tabletop has (got shape [7])' in refused(
        root, armless
    )


def test_same_names_in_another_order_are_reordered(root):
    before = LeRobotDataSet(root, ROBOT)
    change_info(root, lambda info: info['features'][ACTION]['names'].reverse())
    after = LeRobotDataSet(root, ROBOT)
    assert (before.reordered, after.reordered) == ((), (ACTION,))
    np.testing.assert_array_equal(after.read(0).action, before.read(0).action[:, ::-1])
    np.testing.assert_array_equal(after.read(0).state, before.read(0).state)


@pytest.mark.parametrize('key', [STATE, ACTION])
@pytest.mark.parametrize('number', [float('nan'), float('inf')])
def test_what_is_no_number_is_refused(root, key, number):
    def spoil(values):
        values[3][2] = number
        return values

    change_column(root, key, spoil)
    assert f'episode 0: {key}[2] of frame 3 is {number}' in refused(root)


def test_an_empty_value_is_refused(root):
    change_column(root, ACTION, lambda values: [*values[:-1], None])
    assert 'episode 1: action is empty in 1 frames' in refused(root)


def test_rows_of_several_lengths_are_refused(root):
    change_column(root, ACTION, lambda values: [values[0][:-1], *values[1:]])
    assert 'action has rows of [6, 7] numbers' in refused(root)


def test_a_ragged_episode_is_refused(root):
    table = pq.read_table(root / FILE)
    pq.write_table(table.slice(0, len(table) - 3), root / FILE)
    assert 'in meta/: it is ragged' in refused(root)


def test_frames_that_are_not_counted_through_are_refused(root):
    change_column(root, 'frame_index', lambda values: [values[1], values[0], *values[2:]])
    assert 'frame_index does not count from 0' in refused(root)


def test_a_time_that_is_not_the_rates_is_refused(root):
    change_column(root, 'timestamp', lambda values: [*values[:2], values[2] + 0.05, *values[3:]])
    assert 'frame 2 is at 0.250 s, not at 0.200' in refused(root)


def test_a_task_without_words_is_refused(root):
    change_column(root, 'task_index', lambda values: [7] * len(values))
    assert 'task 7 must have a text in meta/tasks' in refused(root)


def test_a_picture_that_is_none_is_refused_when_it_is_read(root):
    def spoil(values):
        values[1]['bytes'] = b'no picture'
        return values

    change_column(root, FRONT, spoil)
    found = LeRobotDataSet(root, ROBOT)
    said = r'episode 0: observation\.images\.front: data must be a JPEG or PNG image .*10 bytes'
    with pytest.raises(DataSetError, match=said):
        found.read(0)
    assert len(found.read(1).state)


def test_pictures_of_several_sizes_are_refused_when_they_are_read(root):
    def spoil(values):
        values[1]['bytes'] = cv2.imencode('.png', np.zeros((5, 5, 3), np.uint8))[1].tobytes()
        return values

    change_column(root, FRONT, spoil)
    with pytest.raises(DataSetError, match='have several sizes'):
        LeRobotDataSet(root, ROBOT).read(0)


@pytest.mark.parametrize(
    ('change', 'said'),
    [
        (lambda root: (root / INFO).unlink(), 'is no LeRobot data set'),
        (lambda root: (root / INFO).write_text('{'), 'is damaged'),
        (
            lambda root: change_info(root, lambda i: i.update(codebase_version='v1.6')),
            'must be one of v2.0, v2.1, v3.0 (got v1.6)',
        ),
        (lambda root: (root / FILE).write_bytes(b'PAR1'), 'cannot be read'),
        (lambda root: (root / FILE).unlink(), 'cannot be read'),
        (
            lambda root: change_info(root, lambda i: i.update(data_path='../{chunk_index}')),
            'outside of itself',
        ),
        (
            lambda root: change_info(root, lambda i: i.update(data_path='{nobody}')),
            'names no file',
        ),
        (
            lambda root: change_info(root, lambda i: i.update(data_path='{chunk_index:0999999d}')),
            'names no file',
        ),
        (lambda root: change_info(root, lambda i: i.update(features=[])), 'is damaged'),
        (lambda root: change_info(root, lambda i: i['features'][FRONT].clear()), 'is damaged'),
        (
            lambda root: change_info(root, lambda i: i['features'][STATE].pop('shape')),
            'is damaged',
        ),
        (lambda root: change_info(root, lambda i: i.update(total_frames=3)), 'total_frames: 3 in'),
        (lambda root: change_info(root, lambda i: i.update(total_episodes=3)), 'was not finished'),
        (lambda root: drop(root / FILE, STATE), 'has no observation.state'),
        (lambda root: drop(root / FILE, 'timestamp'), 'has no timestamp'),
        (lambda root: drop(root / TASKS, 'task_index'), 'has no task_index'),
        (lambda root: drop(root / META, 'length'), 'has no length'),
        (
            lambda root: change_column(root, 'frame_index', lambda values: [None, *values[1:]]),
            'frame_index is empty in 1 rows',
        ),
    ],
)
def test_what_is_no_data_set_is_refused(root, change, said):
    change(root)
    assert said in refused(root)


def test_files_that_are_links_are_read_as_in_the_cache_of_the_hub(exported, tmp_path):
    blobs, root = tmp_path / 'blobs', tmp_path / 'snapshots' / 'main'
    blobs.mkdir()
    for path in (path for path in exported.rglob('*') if path.is_file()):
        blob = blobs / f'{len(list(blobs.iterdir()))}'
        shutil.copy(path, blob)
        link = root / path.relative_to(exported)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    linked, plain = LeRobotDataSet(root, ROBOT), LeRobotDataSet(exported, ROBOT)
    assert len(linked) == len(plain)
    np.testing.assert_array_equal(linked.read(0).action, plain.read(0).action)


def test_a_contract_of_another_rate_is_none_of_lerobots(tmp_path):
    odd = Embodiment.of(CONTRACT.model_copy(update={'fps': 12.5}))
    with pytest.raises(ValueError, match='fps must be an integer for LeRobot'):
        LeRobotWriter(tmp_path / 'out', odd)
