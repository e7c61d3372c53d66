"""Positions of objects and subtasks are optional columns of a data set."""

import json

import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest
from bag_cases import ROBOT

from embodied_kv.data.lerobot_layout import DATA, INFO, STATS, SUBTASKS
from embodied_kv.data.lerobot_writer import Frames, LeRobotWriter
from training.data.lerobot_checks import DataSetError
from training.data.lerobot_reader import LeRobotDataSet

CUBE = np.array([[0.4, 0.0, 0.02], [np.nan] * 3, [0.4, 0.1, 0.02]], np.float32)
SPOT = np.array([[3.0, 4.0], [np.nan] * 2, [5.0, 6.0]], np.float32)
NOWHERE = np.full((3, 3), np.nan, np.float32)
SAID = ('go to the cube', 'go to the cube', 'lift the cube')


def episode(**more):
    picture = cv2.imencode('.png', np.zeros((8, 8, 3), np.uint8))[1].tobytes()
    return Frames(
        task='lift the red cube',
        state=np.zeros((3, 7)),
        action=np.zeros((3, 7)),
        interventions=np.zeros(3, bool),
        images={view: [picture] * 3 for view in ('front', 'wrist')},
        **more,
    )


KNOWING = dict(
    positions={'red cube': CUBE, 'plate': NOWHERE},
    pixels={('front', 'red cube'): SPOT},
    subtasks=SAID,
)


@pytest.fixture
def root(tmp_path):
    writer = LeRobotWriter(tmp_path / 'out', ROBOT)
    for _ in range(2):
        writer.add(episode(**KNOWING))
    writer.finish()
    return writer.root


def test_what_was_written_of_objects_and_subtasks_comes_back(root):
    found = LeRobotDataSet(root, ROBOT)
    assert found.objects == ('red cube', 'plate') and found.has_subtasks
    read = found.read(1)
    np.testing.assert_array_equal(read.positions['red cube'], CUBE)
    np.testing.assert_array_equal(read.positions['plate'], NOWHERE)
    np.testing.assert_array_equal(read.pixels['front', 'red cube'], SPOT)
    assert read.pixels.keys() == {('front', 'red cube')} and read.subtasks == SAID


def test_statistics_are_of_what_is_known(root):
    stats = json.loads((root / STATS).read_text())
    cube = stats['complementary_info.position.red_cube']
    assert cube['count'] == [4] and cube['max'] == pytest.approx([0.4, 0.1, 0.02])
    assert stats['complementary_info.position.plate']['count'] == [0]


def test_without_such_columns_nothing_is_known(tmp_path):
    writer = LeRobotWriter(tmp_path / 'out', ROBOT)
    writer.add(episode())
    writer.finish()
    found = LeRobotDataSet(writer.root, ROBOT)
    assert found.objects == () and not found.has_subtasks
    read = found.read(0)
    assert (read.positions, read.pixels, read.subtasks) == ({}, {}, ())


def test_a_column_of_some_episodes_alone_is_refused(tmp_path):
    writer = LeRobotWriter(tmp_path / 'out', ROBOT)
    writer.add(episode())
    with pytest.raises(ValueError, match='position.red_cube must be a column of all episodes'):
        writer.add(episode(positions={'red cube': CUBE}))
    with pytest.raises(ValueError, match='must have one row for each frame of the episode'):
        writer.add(episode(positions={'red cube': CUBE[:2]}))


@pytest.mark.parametrize(
    'more',
    [
        dict(positions={'red cube': CUBE, 'red_cube': CUBE}),
        dict(pixels={('front', 'red cube'): SPOT, ('front', 'red_cube'): SPOT}),
    ],
)
def test_two_objects_have_no_column_in_common(tmp_path, more):
    writer = LeRobotWriter(tmp_path / 'out', ROBOT)
    with pytest.raises(ValueError, match='red_cube must be the column of one object'):
        writer.add(episode(**more))


def test_a_refused_episode_leaves_no_words(tmp_path):
    writer = LeRobotWriter(tmp_path / 'out', ROBOT)
    writer.add(episode(**KNOWING))
    for more in (dict(subtasks=['never'] * 3), KNOWING | dict(subtasks=['never'] * 2)):
        with pytest.raises(ValueError):
            writer.add(episode(**more))
    writer.finish()
    assert pq.read_table(writer.root / SUBTASKS)['subtask'].to_pylist() == sorted(
        set(SAID), key=SAID.index
    )


def test_a_position_of_other_numbers_is_refused(root):
    info = json.loads((root / INFO).read_text())
    info['features']['complementary_info.position.plate']['shape'] = [2]
    (root / INFO).write_text(json.dumps(info))
    with pytest.raises(DataSetError, match=r'position.plate must be float32 \[3\]'):
        LeRobotDataSet(root, ROBOT)


def test_a_subtask_without_words_is_refused(root):
    path = root / DATA.format(chunk_index=0, file_index=0)
    table = pq.read_table(path)
    place = table.column_names.index('subtask_index')
    pq.write_table(table.set_column(place, 'subtask_index', [[9] * len(table)]), path)
    with pytest.raises(DataSetError, match='subtask 9 must have a text in meta/subtasks'):
        LeRobotDataSet(root, ROBOT)
