"""An export has the files, columns and types that readers of LeRobot v3.0 require."""

import io
import json
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bag_cases import Bag
from PIL import Image

from embodied_kv.data.episodes import Cut
from embodied_kv.data.export import export
from embodied_kv.data.lerobot_writer import LeRobotWriter
from embodied_kv.data.pictures import as_seen
from embodied_kv.data.recording_reader import RecordingError
from embodied_kv.robots.channels import COMPRESSED
from embodied_kv.robots.sources import View

NUMBERS = {'timestamp', 'frame_index', 'episode_index', 'index', 'task_index'}
VIEWS = {'observation.images.front', 'observation.images.wrist'}
PARTS = {'observation.state', 'action'}
FLAG = 'complementary_info.is_intervention'


@pytest.fixture(scope='module')
def exported(tmp_path_factory):
    """Return the export of two recordings with three episodes and two tasks, and its result."""
    folder = tmp_path_factory.mktemp('exported')
    one = Bag(folder / 'one.mcap').lives(5.0)
    one.tell(2.5, 'pick')
    two = Bag(folder / 'two.mcap').lives(2.0)
    done = export([one.finish(), two.finish()], folder / 'out', Cut())
    return folder / 'out', done


@pytest.fixture
def root(exported):
    return exported[0]


@pytest.fixture
def info(root):
    return json.loads((root / 'meta/info.json').read_text())


@pytest.fixture
def episodes(root):
    return pq.read_table(root / 'meta/episodes/chunk-000/file-000.parquet').to_pylist()


@pytest.fixture
def data(root):
    return pq.read_table(root / 'data/chunk-000/file-000.parquet')


def test_info_says_version_rate_and_counts(exported, info, data):
    _, done = exported
    assert info['codebase_version'] == 'v3.0' and info['fps'] == 10
    assert (info['total_episodes'], info['total_tasks']) == (3, 2)
    assert info['total_frames'] == done.frames == len(data)
    assert info['splits'] == {'train': '0:3'}
    assert info['data_path'].format(chunk_index=0, file_index=0) == (
        'data/chunk-000/file-000.parquet'
    )


def test_every_feature_is_a_column_of_its_type(info, data):
    assert info['features'].keys() == {*data.column_names} == NUMBERS | VIEWS | PARTS | {FLAG}
    for name in PARTS:
        assert info['features'][name]['shape'] == [7]
        assert data.schema.field(name).type == pa.list_(pa.float32(), 7)
        assert len(info['features'][name]['names']) == 7
    for name in VIEWS:
        assert info['features'][name]['dtype'] == 'image'
        assert info['features'][name]['shape'] == [12, 16, 3]
    assert data.schema.field('index').type == pa.int64()
    assert data.schema.field('timestamp').type == pa.float32()
    assert data.schema.field(FLAG).type == pa.bool_()


def test_frames_are_counted_through_and_timed_from_each_episodes_start(data, episodes):
    columns = {name: np.array(data[name]) for name in NUMBERS}
    np.testing.assert_array_equal(columns['index'], np.arange(len(data)))
    for episode in episodes:
        rows = slice(episode['dataset_from_index'], episode['dataset_to_index'])
        length = episode['length']
        assert rows.stop - rows.start == length
        np.testing.assert_array_equal(columns['frame_index'][rows], np.arange(length))
        np.testing.assert_allclose(columns['timestamp'][rows], np.arange(length) / 10, rtol=1e-6)
        assert set(columns['episode_index'][rows]) == {episode['episode_index']}
    assert episodes[-1]['dataset_to_index'] == len(data)


def test_tasks_are_an_index_of_words(root, data, episodes):
    table = pq.read_table(root / 'meta/tasks.parquet')
    tasks = dict(zip(table['task_index'].to_pylist(), table['task'].to_pylist(), strict=True))
    assert tasks == {0: 'reach', 1: 'pick'}
    assert json.loads(table.schema.metadata[b'pandas'])['index_columns'] == ['task']
    assert [episode['tasks'] for episode in episodes] == [['reach'], ['pick'], ['reach']]
    for episode in episodes:
        index = data['task_index'][episode['dataset_from_index']].as_py()
        assert [tasks[index]] == episode['tasks']


def test_each_episode_is_a_row_group(root, episodes):
    file = pq.ParquetFile(root / 'data/chunk-000/file-000.parquet')
    lengths = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert lengths == [episode['length'] for episode in episodes]


def test_pictures_are_those_of_their_moment(data):
    pictures = data['observation.images.front'].to_pylist()
    levels = []
    for picture in pictures:
        with Image.open(io.BytesIO(picture['bytes'])) as image:
            assert image.size == (16, 12)
            levels.append(np.asarray(image).mean())
    first = np.array(data['episode_index']) == 0
    assert set(np.diff(np.array(levels)[first])) <= {0, 1, 2}  # one per period, from 20 Hz images
    assert levels[0] in (0, 1)
    assert abs(levels[first.sum() - 1] - levels[0] - first.sum() + 1) <= 1


def test_statistics_are_those_of_the_frames(root, data, info, episodes):
    stats = json.loads((root / 'meta/stats.json').read_text())
    assert stats.keys() == info['features'].keys()
    for name in PARTS:
        values = np.stack(data[name].to_numpy())
        for said, true in (
            ('mean', values.mean(0)),
            ('std', values.std(0)),
            ('max', values.max(0)),
        ):
            np.testing.assert_allclose(stats[name][said], true, rtol=1e-4, atol=1e-7)
        assert stats[name]['count'] == [len(data)]
        assert {'q01', 'q10', 'q50', 'q90', 'q99'} <= stats[name].keys()
    for name in VIEWS:
        mean = np.array(stats[name]['mean'])
        assert mean.shape == (3, 1, 1) and mean.min() >= 0 and mean.max() <= 1
    assert all(f'stats/{name}/mean' in episodes[0] for name in info['features'])


def test_what_cannot_be_exported_is_refused_by_name(tmp_path, exported):
    bag = Bag(tmp_path / 'short.mcap').lives(0.5).finish()
    with pytest.raises(RecordingError, match=r'short\.mcap has no episode of 1 s'):
        export([bag], tmp_path / 'out', Cut())
    with pytest.raises(ValueError, match='must be empty; choose a new folder'):
        export([bag], exported[0], Cut())


def test_a_part_is_exported_as_far_as_it_goes(tmp_path):
    path = Bag(tmp_path / 'cut.mcap').lives(4.0).finish()
    size = path.stat().st_size
    part = tmp_path / 'cut.mcap.part'
    part.write_bytes(path.read_bytes()[: size // 3])
    done = export([part], tmp_path / 'out', Cut())
    assert done.episodes == 1 and 10 < done.frames < 40


def test_an_episode_with_a_picture_that_cannot_be_decoded_is_counted(tmp_path):
    bag = Bag(tmp_path / 'walk.mcap').lives(4.0)
    bag.tell(2.0, 'pick')
    for _, topic, message in bag.waiting:
        if topic == 'camera/wrist/image/compressed' and message.header.stamp.sec == 1003:
            message.data = message.data[:40]
    done = export([bag.finish()], tmp_path / 'out', Cut())
    assert done.episodes == 1
    (reason,) = (name for name in done.skipped if 'damaged image' in name)
    assert 'image of wrist' in reason and done.skipped[reason] >= 15


def test_an_export_is_private_as_its_recording(root):
    assert root.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize('mode', ['L', 'RGB', 'RGBA'])
@pytest.mark.parametrize('format', ['PNG', 'JPEG'])
def test_exported_images_are_grey_or_rgb_without_alpha(mode, format):
    if (mode, format) == ('RGBA', 'JPEG'):
        pytest.skip('JPEG has no alpha')
    stream = io.BytesIO()
    Image.new(mode, (6, 4)).save(stream, format)
    view = View(channel={'topic': 'camera', 'type': COMPRESSED})
    message = SimpleNamespace(data=stream.getvalue())
    seen = as_seen(message, view)
    assert Image.open(io.BytesIO(seen)).mode == ('RGB' if mode == 'RGBA' else mode)
    assert (seen == message.data) == (mode != 'RGBA')


def test_a_data_set_that_was_written_meanwhile_is_not_overwritten(tmp_path, monkeypatch):
    bag, out = Bag(tmp_path / 'walk.mcap').lives(4.0).finish(), tmp_path / 'out'
    finish = LeRobotWriter.finish

    def finish_late(writer):
        finish(writer)
        out.mkdir()
        (out / 'other').write_text('of another export')

    monkeypatch.setattr(LeRobotWriter, 'finish', finish_late)
    with pytest.raises(OSError, match='not empty'):
        export([bag], out, Cut())
    assert [path.name for path in out.iterdir()] == ['other']
    assert sorted(path.name for path in tmp_path.iterdir()) == ['out', 'walk.mcap']


def test_a_data_set_is_written_to_where_a_link_leads(tmp_path):
    bag, disk = Bag(tmp_path / 'walk.mcap').lives(4.0).finish(), tmp_path / 'disk'
    disk.mkdir()
    (tmp_path / 'out').symlink_to(disk)
    export([bag], tmp_path / 'out', Cut())
    assert (disk / 'meta' / 'info.json').exists()


def test_what_fails_leaves_no_folder(tmp_path):
    bag = Bag(tmp_path / 'walk.mcap').lives(0.5)
    with pytest.raises(ValueError, match='no episode'):
        export([bag.finish()], tmp_path / 'out', Cut())
    assert [path.name for path in tmp_path.iterdir()] == ['walk.mcap']
