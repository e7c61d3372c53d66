"""examples/common/columns.py adds the cube's true position in the recordings to each frame."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from embodied_kv.data.episodes import Cut
from embodied_kv.data.export import export
from training.data.lerobot_reader import LeRobotDataSet

POSITION = 'complementary_info.position.red_cube'
PIXEL = 'complementary_info.pixel.wrist.red_cube'


@pytest.fixture
def exported(module, world, tmp_path):
    """Return a recording of two episodes with a moving cube, its data set, and the positions."""
    recording, task = module('recording'), module('record').TASK
    file, where = recording.Episodes(tmp_path / 'lift.mcap', task, 'png'), []
    for seed in (1, 2):
        moments = recording.episode(world, task, seed)
        for step, (seen, _) in enumerate(moments):
            seen['cube'] = np.array([0.5, 0.01 * step, seed])
            seen['pixels'] = {'front': np.array([4.0, 5.0]), 'wrist': np.array([step, 11.5])}
            where.append(seen['cube'])
        file.add(moments)
    file.finish()
    export([tmp_path / 'lift.mcap'], tmp_path / 'set', Cut())
    return tmp_path / 'lift.mcap', tmp_path / 'set', np.stack(where)


def read(root, key):
    table = pq.read_table(root / 'data' / 'chunk-000' / 'file-000.parquet')
    return np.stack(table[key].to_numpy())


def test_each_frame_says_where_the_cube_was(module, exported):
    bag, root, where = exported
    assert module('columns').add(module('link').ROBOT, [bag], root) == len(where)
    np.testing.assert_allclose(read(root, POSITION), where, atol=1e-6)
    info = json.loads((root / 'meta' / 'info.json').read_text())
    assert info['features'][POSITION]['shape'] == [3]


def test_outside_of_a_picture_there_is_no_place(module, exported):
    bag, root, where = exported
    module('columns').add(module('link').ROBOT, [bag], root)
    column, row = read(root, PIXEL).T
    inside = np.isfinite(column)
    assert (column[inside] < 16).all() and (row[inside] == 11.5).all()
    assert 0 < inside.sum() < len(where)


def test_the_data_set_is_read_as_before(module, exported):
    bag, root, _ = exported
    robot = module('link').ROBOT
    before = LeRobotDataSet(root, robot).read(1)
    module('columns').add(module('link').ROBOT, [bag], root)
    after = LeRobotDataSet(root, robot).read(1)
    assert (before.action == after.action).all() and (before.state == after.state).all()
    assert (before.images['front'] == after.images['front']).all()


def test_an_interruption_leaves_the_data_set_as_it_was(module, exported, monkeypatch):
    bag, root, where = exported
    objects, robot = module('columns'), module('link').ROBOT

    def files():
        return {p: p.read_bytes() for p in root.parent.rglob('*') if p.is_file()}

    def write_a_half(path, new, found):
        new.write_bytes(path.read_bytes()[:100])
        raise KeyboardInterrupt

    before = files()
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(objects, '_widen', write_a_half)
        objects.add(robot, [bag], root)
    assert files() == before
    assert objects.add(robot, [bag], root) == len(where)


def test_other_recordings_than_those_it_was_made_of_are_refused(module, exported):
    bag, root, _ = exported
    with pytest.raises(ValueError, match='name those that it was made of'):
        module('columns').add(module('link').ROBOT, [bag, bag], root)
    module('columns').add(module('link').ROBOT, [bag], root)
    with pytest.raises(ValueError, match='knows already'):
        module('columns').add(module('link').ROBOT, [bag], root)
