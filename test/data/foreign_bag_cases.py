"""Bags as `ros2 bag record` writes them, of a robot with two joints and a camera, without ROS."""

import math
from pathlib import Path

import cv2
import numpy as np
import pyarrow.parquet as pq
from rosbags.rosbag2 import CompressionFormat, StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from embodied_kv.data.bag_options import BagOptions
from embodied_kv.data.episodes import Cut
from embodied_kv.data.export import export_bags
from embodied_kv.robots.reading import of_text

SECOND = 10**9
BEGIN = 1_700_000_000 * SECOND
MESSAGES = Path(__file__).resolve().parents[2] / 'msg'
JOINTS = ['turn', 'lift']
TRAJECTORY = 'trajectory_msgs/msg/JointTrajectory'
CONTRACT = """
robot_type: pair
fps: 10
observations:
  observation.images.front:
    channel: {topic: front/image_raw, type: sensor_msgs/msg/Image}
  observation.state:
    - channel: {topic: joint_states, type: sensor_msgs/msg/JointState}
      select: [position.turn, position.lift]
      unit: rad
actions:
  action:
    - channel: {topic: arm/joint_trajectory, type: trajectory_msgs/msg/JointTrajectory}
      select: [position.turn, position.lift]
      unit: rad
      relative: false
limits:
  turn: {velocity: 1.0, acceleration: 5.0}
  lift: {velocity: 1.0, acceleration: 5.0}
"""
STORAGES = {'sqlite3': StoragePlugin.SQLITE3, 'mcap': StoragePlugin.MCAP}
STORE = get_typestore(Stores.ROS2_JAZZY)
for _name in ('ActionChunk', 'ControlState'):
    _text = (MESSAGES / f'{_name}.msg').read_text()
    STORE.register(get_types_from_msg(_text, f'embodied_kv/msg/{_name}'))


def contract(text=CONTRACT, **changes):
    """Return the contract. changes: new texts for parts of it, by the keys of REPLACED."""
    for old, new in changes.items():
        assert REPLACED[old] in text
        text = text.replace(REPLACED[old], new)
    return of_text(text, 'pair')


REPLACED = {
    'camera': '{topic: front/image_raw, type: sensor_msgs/msg/Image}',
    'joints': '[position.turn, position.lift]\n      unit: rad\nactions',
    'action': f"""    - channel: {{topic: arm/joint_trajectory, type: {TRAJECTORY}}}
      select: [position.turn, position.lift]
      unit: rad
      relative: false
""",
    'limits': """  turn: {velocity: 1.0, acceleration: 5.0}
  lift: {velocity: 1.0, acceleration: 5.0}
""",
    'turn': 'turn: {velocity',
}


def new(kind, /, **fields):
    """Return a message of a type; fields that are not given have their defaults."""
    given = {key: fields.pop(key) for key in list(fields)}
    for key, (node, of) in STORE.fielddefs[kind][1]:
        if key in given:
            continue
        if node.name == 'NAME':
            given[key] = new(of)
        elif node.name == 'BASE':
            given[key] = '' if of[0] == 'string' else 0
        else:
            given[key] = np.zeros(0) if of[0][0].name == 'BASE' and of[0][1][0] != 'string' else []
    return STORE.types[kind](**given)


def stamped(at):
    sec, nanosec = divmod(at, SECOND)
    return new(
        'std_msgs/msg/Header', stamp=new('builtin_interfaces/msg/Time', sec=sec, nanosec=nanosec)
    )


def angle(moment):
    """Return the angle of the first joint (rad); the second joint has the negative."""
    return 0.3 * math.sin(moment)


class ForeignBag:
    """A bag; `at` of each method is in s since its beginning."""

    def __init__(self, root, storage='mcap'):
        self.root, self.storage, self.waiting = Path(root), storage, []

    def put(self, topic, at, message, stamp=None):
        when = BEGIN + round(at * SECOND)
        if hasattr(message, 'header'):
            shown = when if stamp is None else BEGIN + round(stamp * SECOND)
            message.header = stamped(shown)
        self.waiting.append((when, topic, message))

    def feel(self, at, names=JOINTS, values=None, stamp=None):
        values = np.array([angle(at), -angle(at)] if values is None else values, np.float64)
        kind = 'sensor_msgs/msg/JointState'
        self.put('/joint_states', at, new(kind, name=list(names), position=values), stamp)

    def see(self, at, topic='/front/image_raw', encoding='raw', stamp=None):
        """Add an image of the grey level of its time, `level(at)`."""
        pixels = np.full((12, 16, 3), level(at), np.uint8)
        if encoding == 'raw':
            sizes = {'height': 12, 'width': 16, 'step': 48}
            kind = 'sensor_msgs/msg/Image'
            message = new(kind, encoding='rgb8', data=pixels.ravel(), **sizes)
        else:
            data = np.frombuffer(cv2.imencode(f'.{encoding}', pixels)[1].tobytes(), np.uint8)
            message = new('sensor_msgs/msg/CompressedImage', format=encoding, data=data)
        self.put(topic, at, message, stamp)

    def command(self, at, rows=None, times=(0.1,), names=JOINTS, topic='/arm/joint_trajectory'):
        rows = [[angle(at) + 0.01, -angle(at)]] if rows is None else rows
        points = [
            new(
                'trajectory_msgs/msg/JointTrajectoryPoint',
                positions=np.array(row, np.float64),
                time_from_start=new(
                    'builtin_interfaces/msg/Duration',
                    sec=int(t),
                    nanosec=round((t % 1) * SECOND),
                ),
            )
            for row, t in zip(rows, times, strict=False)
        ]
        self.put(topic, at, new(TRAJECTORY, joint_names=list(names), points=points))

    def tell(self, at, text, topic='/instruction'):
        self.put(topic, at, new('std_msgs/msg/String', data=text))

    def mark(self, at, value, topic='/episode'):
        self.put(topic, at, new('std_msgs/msg/Bool', data=value))

    def lives(self, seconds, begin=0.0, encoding='raw', topic='/front/image_raw', commands=True):
        """Add images at 20 Hz, joint states at 50 Hz and commands at 10 Hz."""
        for i in range(round(seconds * 50)):
            self.feel(begin + i / 50)
        for i in range(round(seconds * 20)):
            self.see(begin + i / 20, topic, encoding)
        for i in range(round(seconds * 10) if commands else 0):
            self.command(begin + i / 10)
        return self

    def write(self, compression=None):
        """Write the folder and return it."""
        writer = Writer(self.root, version=9, storage_plugin=STORAGES[self.storage])
        if compression is not None:
            writer.set_compression(compression, CompressionFormat.ZSTD)
        with writer:
            known = {}
            for when, topic, message in sorted(self.waiting, key=lambda entry: entry[0]):
                kind = message.__msgtype__
                if topic not in known:
                    known[topic] = writer.add_connection(topic, kind, typestore=STORE)
                writer.write(known[topic], when, STORE.serialize_cdr(message, kind))
        return self.root


def level(at):
    return round(at * 10) % 256


def exported(root, folder, of=None, cut=None, **options):
    """Return the result of an export and the columns of its only data file."""
    options = BagOptions(**{'task': 'reach'} | options)
    roots = root if isinstance(root, list) else [root]
    done = export_bags(roots, folder / 'out', cut or Cut(), of or contract(), options)
    return done, pq.read_table(folder / 'out/data/chunk-000/file-000.parquet').to_pydict()


def column(data, name):
    return np.array(data[name], np.float64)


def tasks(folder):
    table = pq.read_table(folder / 'out/meta/episodes/chunk-000/file-000.parquet')
    return [names[0] for names in table['tasks'].to_pylist()]
