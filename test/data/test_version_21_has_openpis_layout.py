"""`--format v2.1` writes the files, columns and types that LeRobot 0.3 and openpi read."""

import json
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from bag_cases import ROBOT, Bag

from embodied_kv.data import export
from embodied_kv.data.lerobot_layout import VERSION
from embodied_kv.data.lerobot_v21 import VERSION_21, WRITERS, LeRobotV21Writer
from training.data.lerobot_reader import LeRobotDataSet

VIEWS = 'observation.images.front', 'observation.images.wrist'


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp('exported')
    bag = Bag(folder / 'one.mcap').lives(4.0)
    bag.tell(2.0, 'pick')
    with pytest.MonkeyPatch.context() as patch:
        command = ['export', str(bag.finish()), str(folder / 'out'), '--format', 'v2.1']
        patch.setattr(sys, 'argv', command)
        export.main()
    return folder / 'out'


def info(root):
    return json.loads((root / 'meta/info.json').read_text())


def lines(root, name):
    return [json.loads(line) for line in (root / f'meta/{name}.jsonl').read_text().splitlines()]


def data(root, index):
    pattern = info(root)['data_path']
    return pq.read_table(root / pattern.format(episode_chunk=0, episode_index=index))


def test_default_is_the_present_version():
    assert VERSION == 'v3.0' and set(WRITERS) == {VERSION, VERSION_21}


def test_folder_has_the_files_of_version_21_only(root):
    found = {str(path.relative_to(root)) for path in root.rglob('*') if path.is_file()}
    names = {f'meta/{name}.jsonl' for name in ('episodes', 'episodes_stats', 'tasks')}
    episodes = {f'data/chunk-000/episode_00000{index}.parquet' for index in range(2)}
    assert found == {'meta/info.json'} | names | episodes


def test_info_has_the_fields_of_version_21(root):
    found = info(root)
    assert found['codebase_version'] == 'v2.1' and found['video_path'] is None
    assert found['total_chunks'] == 1 and found['total_videos'] == 0
    assert found['total_episodes'] == 2 and found['chunks_size'] == 1000
    assert not any(name.endswith('_size_in_mb') for name in found)


def test_each_file_has_one_episode(root):
    start = 0
    for index, episode in enumerate(lines(root, 'episodes')):
        table = data(root, index)
        assert episode == {
            'episode_index': index,
            'tasks': [('reach', 'pick')[index]],
            'length': len(table),
        }
        assert set(table['episode_index'].to_pylist()) == {index}
        assert table['index'].to_pylist() == list(range(start, start + len(table)))
        start += len(table)
    assert lines(root, 'tasks') == [
        {'task_index': 0, 'task': 'reach'},
        {'task_index': 1, 'task': 'pick'},
    ]


def test_images_have_the_type_that_datasets_recognises(root):
    schema = data(root, 0).schema
    described = json.loads(schema.metadata[b'huggingface'])['info']['features']
    assert described == {view: {'_type': 'Image'} for view in VIEWS}


def test_statistics_are_those_of_each_episode_without_quantiles(root):
    for index, entry in enumerate(lines(root, 'episodes_stats')):
        assert (
            entry['episode_index'] == index
            and entry['stats'].keys() == info(root)['features'].keys()
        )
        action = np.stack(data(root, index)['action'].to_numpy())
        found = entry['stats']['action']
        assert found.keys() == {'min', 'max', 'mean', 'std', 'count'}
        np.testing.assert_allclose(found['mean'], action.mean(0), rtol=1e-5)
        np.testing.assert_allclose(found['max'], action.max(0), rtol=1e-6)
        assert found['count'] == [len(action)]
        assert np.shape(entry['stats'][VIEWS[0]]['std']) == (3, 1, 1)


def test_version_21_is_read_back(root):
    found = LeRobotDataSet(root, ROBOT)
    table = data(root, 1)
    read = found.read(1)
    np.testing.assert_array_equal(read.action, np.stack(table['action'].to_numpy()))
    assert set(read.tasks) == {'pick'} and read.images['front'].shape == (len(table), 12, 16, 3)


def test_more_episodes_than_a_chunk_holds_are_in_several_folders(tmp_path):
    writer = LeRobotV21Writer(tmp_path / 'out', ROBOT)
    assert str(writer._data(1234)).endswith('data/chunk-001/episode_001234.parquet')
