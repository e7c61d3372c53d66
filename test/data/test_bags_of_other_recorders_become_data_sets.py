"""Bags of any recorder become data sets: storages, image types, commands, episodes and tasks."""

import io
import json
import math
import sqlite3

import numpy as np
import pyarrow.parquet as pq
import pytest
from bag_cases import CONTRACT, Bag
from foreign_bag_cases import (
    BEGIN,
    JOINTS,
    ForeignBag,
    angle,
    column,
    contract,
    exported,
    level,
    new,
    tasks,
)
from PIL import Image
from rosbags.rosbag2 import CompressionMode

from embodied_kv.data import bag_reader, episodes
from embodied_kv.data.bag_options import BagOptions, Mark
from embodied_kv.data.bag_signals import BagSignals
from embodied_kv.data.episodes import Cut
from embodied_kv.data.export import export

FRONT = 'observation.images.front'
MULTI = """    - channel: {topic: arm/commands, type: std_msgs/msg/Float64MultiArray}
      select: [%s.turn, %s.lift]
      unit: %s
      relative: false
"""
JOINT_COMMANDS = """    - channel: {topic: leader, type: sensor_msgs/msg/JointState}
      select: [position.turn, position.lift]
      unit: rad
      relative: false
"""
TWIST = """    - channel: {topic: servo, type: geometry_msgs/msg/TwistStamped}
      select: [twist.linear.x, twist.angular.z]
      unit: m/s
      frame: base
      relative: false
"""
GOALS = """    - channel: {topic: arm/follow, type: control_msgs/action/FollowJointTrajectory}
      select: [position.turn, position.lift]
      unit: rad
      relative: false
"""


def turning(data, name='observation.state'):
    """Return the first joint in all frames except the last, which follows the last command."""
    return column(data, name)[:-1, 0]


def angles(data, later=0.0):
    """Return the first joint's angles in `ForeignBag.lives`, in all frames except the last."""
    return np.vectorize(angle)(np.arange(len(data['index']) - 1) / 10 + later)


def check(data):
    """Check state, image and latest command of each frame against `ForeignBag.lives`."""
    np.testing.assert_allclose(turning(data), angles(data), atol=7e-3)
    np.testing.assert_allclose(turning(data, 'action'), angles(data) + 0.01, atol=1e-6)
    levels = [np.asarray(Image.open(io.BytesIO(i['bytes'])))[0, 0, 0] for i in data[FRONT]]
    expected = [level(i / 10) for i in range(len(levels))]
    assert len(levels) > 10 and np.abs(np.array(levels, int) - expected).max() <= 1


@pytest.mark.parametrize('is_file', [False, True], ids=['folder', 'file'])
@pytest.mark.parametrize('storage', ['sqlite3', 'mcap'])
def test_bag_of_either_storage_becomes_an_episode(tmp_path, storage, is_file):
    root = ForeignBag(tmp_path / 'bag', storage).lives(3.0).write()
    (file,) = root.glob('bag.*')
    done, data = exported(file if is_file else root, tmp_path)
    assert (done.episodes, done.frames) == (1, 31) and tasks(tmp_path) == ['reach']
    check(data)


@pytest.mark.parametrize('mode', [CompressionMode.MESSAGE, CompressionMode.FILE])
def test_compressed_bag_becomes_an_episode(tmp_path, mode):
    root = ForeignBag(tmp_path / 'bag', 'sqlite3').lives(2.0).write(mode)
    _, data = exported(root, tmp_path)
    check(data)


@pytest.mark.parametrize('encoding', ['jpg', 'png'])
def test_compressed_images_are_read_from_a_raw_topics_transport(tmp_path, encoding):
    topic = '/front/image_raw/compressed'
    root = ForeignBag(tmp_path / 'bag').lives(2.0, encoding=encoding, topic=topic).write()
    _, data = exported(root, tmp_path)
    check(data)


def grey_jpeg(message):
    """Return a message with the same pixels as a JPEG of one channel."""
    pixels = message.data.reshape(12, 16, 3)[..., 0]
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, 'JPEG')
    data = np.frombuffer(stream.getvalue(), np.uint8)
    return new('sensor_msgs/msg/CompressedImage', header=message.header, format='jpeg', data=data)


def mono8(message):
    """Return a message with the same pixels as a raw image of one channel."""
    data = message.data.reshape(12, 16, 3)[..., 0].ravel()
    sizes = {'height': 12, 'width': 16, 'step': 16}
    kind = 'sensor_msgs/msg/Image'
    return new(kind, header=message.header, encoding='mono8', data=data, **sizes)


@pytest.mark.parametrize(
    ('topic', 'grey'), [('/front/image_raw', mono8), ('/front/image_raw/compressed', grey_jpeg)]
)
def test_grey_images_keep_their_channel(tmp_path, topic, grey):
    bag = ForeignBag(tmp_path / 'bag').lives(2.0)
    bag.waiting = [
        (when, topic, grey(message)) if name == '/front/image_raw' else (when, name, message)
        for when, name, message in bag.waiting
    ]
    _, data = exported(bag.write(), tmp_path)
    images = [np.asarray(Image.open(io.BytesIO(image['bytes']))) for image in data[FRONT]]
    assert {image.shape for image in images} == {(12, 16)}
    assert [image[0, 0] for image in images] == [level(i / 10) for i in range(len(images))]
    info = json.loads((tmp_path / 'out/meta/info.json').read_text())
    assert info['features'][FRONT]['shape'] == [12, 16, 1]


def test_raw_images_are_preferred_where_both_transports_are_recorded(tmp_path):
    bag = ForeignBag(tmp_path / 'bag').lives(2.0)
    for i in range(40):
        bag.see(i / 20 + 5.0, '/front/image_raw/compressed', 'png')  # images of later times
        bag.waiting[-1] = (BEGIN + i * 50_000_000, *bag.waiting[-1][1:])
    _, data = exported(bag.write(), tmp_path)
    check(data)


def test_topics_are_found_in_a_namespace(tmp_path):
    bag = ForeignBag(tmp_path / 'bag').lives(2.0)
    bag.waiting = [(when, f'/left{topic}', message) for when, topic, message in bag.waiting]
    _, data = exported(bag.write(), tmp_path, namespace='left')
    check(data)


def test_bag_without_definitions_is_read_by_standard_types(tmp_path):
    root = ForeignBag(tmp_path / 'bag', 'sqlite3').lives(2.0).write()
    (file,) = root.glob('*.db3')
    with sqlite3.connect(file) as database:
        database.execute('DELETE FROM message_definitions')
    _, data = exported(root, tmp_path)
    check(data)


# ---------------------------------------------------------------------- actions


def test_trajectory_is_followed_point_by_point(tmp_path):
    bag = ForeignBag(tmp_path / 'bag').lives(3.0, commands=False)
    bag.command(0.0, rows=[[0.0, 0.0], [0.1, -0.2], [0.2, -0.2]], times=(0.5, 1.5, 2.0))
    bag.command(2.5, rows=[[0.0, 0.0]])
    _, data = exported(bag.write(), tmp_path, gap=3.0)
    turn = [np.interp(at, [0.5, 1.5, 2.0], [0.0, 0.1, 0.2]) for at in np.arange(25) / 10]
    np.testing.assert_allclose(column(data, 'action')[:25, 0], turn, atol=1e-6)
    np.testing.assert_allclose(column(data, 'action')[25:], 0.0, atol=1e-6)


def test_joints_are_assigned_by_name(tmp_path):
    bag = ForeignBag(tmp_path / 'bag').lives(2.0, commands=False)
    for i in range(20):
        bag.command(i / 10, rows=[[0.5, 0.2, 0.1]], names=['other', 'lift', 'turn'])
    _, data = exported(bag.write(), tmp_path)
    np.testing.assert_allclose(column(data, 'action'), [[0.1, 0.2]] * 21, atol=1e-6)


@pytest.mark.parametrize(('kind', 'unit'), [('position', 'rad'), ('velocity', 'rad/s')])
def test_forward_controllers_commands_are_actions(tmp_path, kind, unit):
    bag = ForeignBag(tmp_path / 'bag').lives(2.0, commands=False)
    for i in range(20):
        bag.put(
            '/arm/commands',
            i / 10,
            new('std_msgs/msg/Float64MultiArray', data=np.array([i, -i]) / 100),
        )
    _, data = exported(bag.write(), tmp_path, contract(action=MULTI % (kind, kind, unit)))
    np.testing.assert_allclose(turning(data, 'action'), np.arange(20) / 100, atol=1e-6)


def test_joint_state_commands_are_actions(tmp_path):
    bag = ForeignBag(tmp_path / 'bag').lives(2.0, commands=False)
    for i in range(20):
        message = new(
            'sensor_msgs/msg/JointState', name=JOINTS[::-1], position=np.array([0.2, 0.1])
        )
        bag.put('/leader', i / 10, message)
    _, data = exported(bag.write(), tmp_path, contract(action=JOINT_COMMANDS))
    np.testing.assert_allclose(column(data, 'action'), [[0.1, 0.2]] * 21, atol=1e-6)


def test_twists_are_actions(tmp_path):
    limits = ''.join(
        f'  twist.{axis}: {{velocity: 1.0, acceleration: 5.0}}\n'
        for axis in ('linear.x', 'angular.z')
    )
    bag = ForeignBag(tmp_path / 'bag').lives(2.0, commands=False)
    for i in range(20):
        message = new('geometry_msgs/msg/TwistStamped')
        message.twist.linear.x, message.twist.angular.z = 0.25, -0.5
        bag.put('/servo', i / 10, message)
    _, data = exported(bag.write(), tmp_path, contract(action=TWIST, limits=limits))
    np.testing.assert_allclose(column(data, 'action'), [[0.25, -0.5]] * 21, atol=1e-6)


def chunk(at):
    """Return actions 0.1 s apart along `angle`, offset unlike the controller's commands."""
    values = [[angle(at + i / 10) + 0.02, 0.0] for i in range(10)]
    return new(
        'embodied_kv/msg/ActionChunk',
        joint_names=list(JOINTS),
        dt=0.1,
        chunk_size=10,
        values=np.ravel(values),
        execution_horizon=10,
    )


def test_action_chunks_are_preferred_to_the_controllers_commands(tmp_path):
    bag = ForeignBag(tmp_path / 'bag').lives(3.0)
    for i in range(30):
        bag.put('/action_chunk', i / 10, chunk(i / 10))
    root = bag.write()
    _, data = exported(root, tmp_path)
    np.testing.assert_allclose(turning(data, 'action'), angles(data) + 0.02, atol=1e-6)
    again = tmp_path / 'commands'
    _, data = exported(root, again, actions='commands')
    np.testing.assert_allclose(turning(data, 'action'), angles(data) + 0.01, atol=1e-6)


def test_measured_positions_are_actions_of_a_robot_that_is_commanded_by_goals(tmp_path):
    root = ForeignBag(tmp_path / 'bag').lives(3.0, commands=False).write()
    _, data = exported(root, tmp_path, contract(action=GOALS), actions='measured')
    np.testing.assert_allclose(turning(data, 'action'), angles(data, later=0.1), atol=7e-3)
    assert all(data['complementary_info.is_intervention'])


def test_continuous_joint_that_is_published_wrapped_has_no_jumps(tmp_path):
    robot = contract(turn='turn: {continuous: true, velocity')
    bag = ForeignBag(tmp_path / 'bag').lives(3.0, commands=False)
    bag.waiting = [entry for entry in bag.waiting if entry[1] != '/joint_states']
    for i in range(150):
        bag.feel(i / 50, values=[math.remainder(3.0 + i / 100, 2 * math.pi), 0.0])
    for i in range(30):
        ahead = 3.0 + i / 20 + np.array([0.0, 0.1])
        rows = [[math.remainder(angle, 2 * math.pi), 0.0] for angle in ahead]
        bag.command(i / 10, rows=rows, times=(0.0, 0.2))
    _, data = exported(bag.write(), tmp_path, robot)
    for name in ('observation.state', 'action'):
        np.testing.assert_allclose(turning(data, name), 3.0 + np.arange(30) / 20, atol=0.02)


def test_recording_of_this_suite_is_a_bag_too(tmp_path):
    path = Bag(tmp_path / 'walk.mcap').lives(3.0).finish()
    own = export([path], tmp_path / 'own', Cut())
    done, data = exported(path, tmp_path, CONTRACT, task='', namespace='r', gap=0.2)
    assert done == own and done.episodes == 1
    whole = pq.read_table(tmp_path / 'own/data/chunk-000/file-000.parquet').to_pydict()
    assert data == whole


# ---------------------------------------------------------------------- episodes and tasks


def test_pause_of_the_commands_ends_an_episode(tmp_path):
    bag = ForeignBag(tmp_path / 'bag').lives(8.0, commands=False)
    for i in (*range(20), *range(60, 80)):
        bag.command(i / 10)
    done, data = exported(bag.write(), tmp_path, gap=0.5)
    assert done.episodes == 2 and done.skipped['without a command'] == 35
    assert data['episode_index'] == [0] * 25 + [1] * 21


def test_pause_of_a_camera_ends_an_episode(tmp_path):
    bag = ForeignBag(tmp_path / 'bag').lives(6.0)
    pause = range(BEGIN + 2 * 10**9, BEGIN + 4 * 10**9)
    bag.waiting = [e for e in bag.waiting if 'image' not in e[1] or e[0] not in pause]
    done, _ = exported(bag.write(), tmp_path)
    assert done.episodes == 2 and done.skipped[f'without an image of {FRONT}'] > 15


def test_topic_marks_episodes_and_gives_their_tasks(tmp_path):
    bag = ForeignBag(tmp_path / 'bag').lives(8.0)
    bag.tell(0.0, 'pick', '/task')
    bag.tell(4.5, 'place', '/task')
    for at, value in ((1.0, True), (1.5, True), (3.0, False), (5.0, True), (7.0, False)):
        bag.mark(at, value)
    options = {'task': '', 'task_topic': '/task', 'episode_topic': '/episode'}
    done, data = exported(bag.write(), tmp_path, **options)
    assert done.episodes == 2 and tasks(tmp_path) == ['pick', 'place']
    assert data['episode_index'] == [0] * 20 + [1] * 20
    assert done.skipped['outside of the marked episodes'] == 41


def test_number_on_a_topic_separates_adjacent_episodes(tmp_path):
    bag = ForeignBag(tmp_path / 'bag').lives(4.0)
    for at, value in ((0.0, 0), (2.0, 1)):
        bag.put('/episode', at, new('std_msgs/msg/Int32', data=value))
    done, data = exported(bag.write(), tmp_path, episode_topic='episode')
    assert done.episodes == 2 and data['episode_index'] == [0] * 20 + [1] * 20


def test_list_gives_episodes_of_several_bags_with_their_tasks(tmp_path):
    roots = [ForeignBag(tmp_path / name).lives(5.0).write() for name in ('one', 'two')]
    marks = (
        Mark(1.0, 3.0, 'pick', 'one'),
        Mark(3.0, 4.5, 'place', 'one'),
        Mark(0.0, 2.0, '', 'two'),
    )
    done, data = exported(roots, tmp_path, marks=marks)
    assert done.episodes == 3 and tasks(tmp_path) == ['pick', 'place', 'reach']
    assert data['episode_index'] == [0] * 20 + [1] * 15 + [2] * 20


def test_prompt_in_the_metadata_of_rosettas_recorder_is_the_task(tmp_path):
    root = ForeignBag(tmp_path / 'bag').lives(2.0).write()
    metadata = root / 'metadata.yaml'
    text = metadata.read_text()
    assert 'custom_data: null' in text
    prompt = 'custom_data: {lerobot.operator_prompt: fold the towel}'
    metadata.write_text(text.replace('custom_data: null', prompt))
    exported(root, tmp_path, task='')
    assert tasks(tmp_path) == ['fold the towel']


def test_times_of_recording_replace_the_stamps_of_a_clock_that_differs(tmp_path):
    bag = ForeignBag(tmp_path / 'bag').lives(2.0)
    for _, _, message in bag.waiting:
        message.header.stamp.sec -= 3600
    _, data = exported(bag.write(), tmp_path, stamps='receive')
    check(data)


def test_memory_of_signals_does_not_grow_with_the_bag(tmp_path, monkeypatch):
    monkeypatch.setattr(episodes, 'PATIENCE', 10**9)
    held = []
    for seconds in (4.0, 16.0):
        root = ForeignBag(tmp_path / f'{seconds}').lives(seconds).write()
        signals = BagSignals(bag_reader.Bag(root, contract(), BagOptions(task='reach')))
        (episode,) = episodes.Episodes(signals, Cut()).found
        assert len(episode) == 10 * seconds + 1
        held.append(sum(len(series.stamps) for series in signals.all_series().values()))
    assert held[1] < 1.5 * held[0]
