"""Columns and dimensions of a data set match those of the contract, are mapped, or are refused."""

import argparse
import json
import re

import numpy as np
import pytest
from data_set_cases import LENGTHS, SIDE, TOP, change_info, encode, level, rename, to_video, write
from hypothesis import given
from hypothesis import strategies as st
from robot_cases import ROBOT, TEXT

from embodied_kv.config import preset
from embodied_kv.data.lerobot_layout import ACTION, STATE
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.reading import of_text
from training.data.lerobot_checks import DataSetError
from training.data.lerobot_columns import dimension_names
from training.data.lerobot_reader import LeRobotDataSet
from training.run.__main__ import rename_map
from training.run.frames import Frames, episodes_of

OPENPI = {TOP: 'image', SIDE: 'wrist_image', STATE: 'state', ACTION: 'actions'}
JOINTS = ['slide', 'lift', 'turn', 'jaw']
NAMED = TEXT.replace(
    'relative: [true, true, false, false]',
    'relative: false\n      names: [slide.pos, lift.pos, turn.pos, jaw.pos]',
)


@pytest.fixture
def root(tmp_path):
    return write(tmp_path / 'set')


def named(root, names, key=ACTION):
    change_info(root, lambda info: info['features'][key].update(names=names))
    return root


def suggested(message):
    """Return the map of the option that a message recommends."""
    return rename_map(re.search(r"--rename-map '(.*?)'", message)[1])


# ------------------------------------------------------------------ columns


def test_advice_for_other_columns_is_accepted(root):
    before = LeRobotDataSet(root, ROBOT).read(1)
    rename(root, OPENPI)
    with pytest.raises(DataSetError, match='got .*image, wrist_image') as refused:
        LeRobotDataSet(root, ROBOT)
    advised = suggested(str(refused.value))
    assert advised == {new: old for old, new in OPENPI.items()}
    after = LeRobotDataSet(root, ROBOT, advised).read(1)
    np.testing.assert_array_equal(after.state, before.state)
    np.testing.assert_array_equal(after.action, before.action)
    for view in ('top', 'side'):
        np.testing.assert_array_equal(after.images[view], before.images[view])


@pytest.mark.parametrize('key', ['image', 'observation.image', 'observation.images.cam', 'cam.0'])
def test_view_named_as_its_column_is_found(root, key):
    rename(root, {TOP: key})
    robot = Embodiment.of(of_text(TEXT.replace('\n  top:', f'\n  {key}:'), 'other.yaml'))
    read = LeRobotDataSet(root, robot).read(0)
    assert read.images.keys() == {key, 'side'}
    assert read.images[key].mean((1, 2, 3)).tolist() == [level(i) for i in range(LENGTHS[0])]


def test_target_of_the_map_may_be_the_name_of_the_view(root):
    rename(root, {TOP: 'image'})
    assert LeRobotDataSet(root, ROBOT, {'image': 'top'}).read(0).images.keys() == {'top', 'side'}


def test_columns_are_exchanged_by_the_map(root):
    to_video(root)  # differs from side by the losses of its codec
    there = LeRobotDataSet(root, ROBOT).read(0).images
    exchanged = LeRobotDataSet(root, ROBOT, {TOP: SIDE, SIDE: TOP}).read(0).images
    assert (there['top'] != there['side']).any()
    np.testing.assert_array_equal(exchanged['top'], there['side'])
    np.testing.assert_array_equal(exchanged['side'], there['top'])


@pytest.mark.parametrize(
    ('names', 'message'),
    [
        ({'camera': 'elsewhere'}, r'rename_map must map columns .* \(got camera; there are'),
        ({SIDE: TOP}, rf'rename_map must map one column to {re.escape(TOP)} \(got'),
    ],
)
def test_map_that_does_not_fit_is_refused(root, names, message):
    with pytest.raises(DataSetError, match=message):
        LeRobotDataSet(root, ROBOT, names)


def test_map_of_several_data_sets_fits_each(root):
    assert len(LeRobotDataSet(root, ROBOT, {'image': TOP})) == len(LENGTHS)


@pytest.mark.parametrize('text', ['image: top', '["image"]', '{"image": 3}', ''])
def test_option_that_is_no_map_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match='rename map must be JSON like'):
        rename_map(text)


# ------------------------------------------------------------------ names

SAME = [
    JOINTS,
    {'motors': JOINTS},
    {name: i for i, name in enumerate(JOINTS)},
    {'arm': {'slide': 0, 'lift': 1}, 'hand': {'turn': 2, 'jaw': 3}},
    {'motors': {'arm': JOINTS[:3], 'hand': JOINTS[3:]}},
    {'arm': JOINTS[:3], 'hand': 'jaw'},
    [JOINTS[:2], JOINTS[2:]],
    [f'{name}.pos' for name in JOINTS],
    [f'position.{name}' for name in JOINTS],
]
TURNED = [
    JOINTS[::-1],
    {'motors': JOINTS[::-1]},
    {name: 3 - i for i, name in enumerate(JOINTS)},
    {'hand': {'jaw': 0, 'turn': 1}, 'arm': {'slide': 3, 'lift': 2}},
    {'motors': {'hand': JOINTS[:1:-1], 'arm': JOINTS[1::-1]}},
    [f'{name}.pos' for name in JOINTS[::-1]],
]


def read_action(root, contract=TEXT):
    data = LeRobotDataSet(root, Embodiment.of(of_text(contract, 'gantry.yaml')))
    return data.reordered, data.read(0).action[0].tolist()


@pytest.mark.parametrize('names', SAME)
def test_same_order_is_kept_in_every_form(root, names):
    reordered, action = read_action(named(root, names))
    assert reordered == () and action == [0, 1, 2, 3]


@pytest.mark.parametrize('names', TURNED)
def test_other_order_is_mapped_in_every_form(root, names):
    reordered, action = read_action(named(root, names))
    assert reordered == (ACTION,) and action == [3, 2, 1, 0]


def test_names_of_the_contract_are_mapped(root):
    reordered, action = read_action(
        named(root, ['jaw.pos', 'slide.pos', 'lift.pos', 'turn.pos']), NAMED
    )
    assert reordered == (ACTION,) and action == [1, 2, 3, 0]


@pytest.mark.parametrize('names', [None, [], {}, ['actions'], {'motors': None}])
def test_vector_without_names_is_taken_in_its_order(root, names):
    assert read_action(named(root, names), NAMED) == read_action(root, NAMED)


@pytest.mark.parametrize(
    ('names', 'contract', 'message'),
    [
        ([*JOINTS[:3], 'wrist'], TEXT, 'names of action must be those of the contract'),
        (['a', 'b', 'c', 'd'], NAMED, 'names of action must be those of the contract, slide.pos'),
        (JOINTS, NAMED, 'names of action must be those of the contract'),
        (JOINTS[:3], TEXT, r'must be one for each of its 4 numbers \(got 3\)'),
        (['jaw'] * 4, TEXT, 'names of action must differ'),
        ({n: i + 1 for i, n in enumerate(JOINTS)}, TEXT, 'indices .* must be 0 to 3, each once'),
        ({'slide': 0, 'more': JOINTS[1:]}, TEXT, 'indices .* must be 0 to 3, each once'),
        ([1, 2, 3, 4], TEXT, r'names of action must be texts in lists or mappings \(got 1\)'),
        ({'slide': True, 'lift': 1, 'turn': 2, 'jaw': 3}, TEXT, 'must be texts'),
    ],
)
def test_names_that_do_not_fit_are_refused(root, names, contract, message):
    with pytest.raises(DataSetError, match=message):
        read_action(named(root, names), contract)


def test_equal_names_in_groups_have_the_name_of_their_group():
    names = {'motors': {'left': ['elbow', 'wrist'], 'right': ['elbow', 'wrist']}}
    expected = ['left.elbow', 'left.wrist', 'right.elbow', 'right.wrist']
    assert dimension_names(STATE, names, 4) == expected


@given(st.permutations(range(4)))
def test_every_form_of_an_order_gives_the_same_names(order):
    listed = [JOINTS[i] for i in order]
    indexed = {name: listed.index(name) for name in JOINTS}
    for names in (listed, {'motors': listed}, indexed, {'a': {'b': indexed}}):
        assert dimension_names(ACTION, json.loads(json.dumps(names)), 4) == listed


# ------------------------------------------------------------------ cameras


def test_grey_images_keep_their_channel(tmp_path):
    root = write(tmp_path / 'set', channels=1)
    data = LeRobotDataSet(root, ROBOT)
    assert data.info['features'][TOP]['shape'] == [48, 64, 1]
    assert data.info['features'][SIDE]['shape'] == [48, 64, 3]
    images = data.read(0).images
    assert images['top'].shape[1:] == (48, 64, 1) and images['side'].shape[1:] == (48, 64, 3)
    np.testing.assert_array_equal(images['top'].repeat(3, 3), images['side'])
    frames = Frames.read(list(episodes_of([data])), ROBOT.adapted(preset('tabletop_small')), [])
    np.testing.assert_array_equal(frames.images[:, 0], frames.images[:, 1])


def test_grey_video_keeps_its_channel(root):
    encode(to_video(root), sum(LENGTHS))
    change_info(root, lambda info: info['features'][TOP].update(shape=[48, 64, 1]))
    assert LeRobotDataSet(root, ROBOT).read(0).images['top'].shape == (LENGTHS[0], 48, 64, 1)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (dict(shape=[48, 64, 4]), r'must have the shape \[height, width, 1 or 3\]'),
        (dict(shape=[48, 64]), r'must have the shape \[height, width, 1 or 3\]'),
        (
            dict(info={'is_depth_map': True}),
            r'must contain RGB or grey images \(got a depth map\)',
        ),
        (dict(info={'video.is_depth_map': True}), 'got a depth map'),
        (dict(video_info={'video.is_depth_map': True}), 'got a depth map'),
    ],
)
def test_camera_without_grey_or_colour_is_refused(root, change, message):
    change_info(root, lambda info: info['features'][TOP].update(change))
    with pytest.raises(DataSetError, match=message):
        LeRobotDataSet(root, ROBOT)


def test_shape_may_begin_with_the_channels(root):
    names = ['channels', 'height', 'width']
    change_info(root, lambda info: info['features'][TOP].update(shape=[3, 48, 64], names=names))
    assert LeRobotDataSet(root, ROBOT).read(0).images['top'].shape[1:] == (48, 64, 3)
