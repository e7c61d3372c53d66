"""Recordings of an imaginary robot, in the recorder's messages, at chosen times."""

import math
from itertools import chain
from operator import itemgetter

import cv2
import numpy as np
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage, JointState
from std_msgs.msg import String

from embodied_kv.data.recording_file import Channel, RecordingFile
from embodied_kv.msg import ActionChunk, ControlState
from embodied_kv.nodes.common.publishers import type_name
from embodied_kv.nodes.recording.topics import definition, recorded
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.reading import load, to_text

CONTRACT = load('tabletop')
ROBOT = Embodiment.of(CONTRACT)
SECOND = 10**9
BEGIN = 1_000 * SECOND


def stamped(message, at):
    message.header.stamp.sec, message.header.stamp.nanosec = divmod(at, SECOND)
    return message


def position(at):
    """Return the position of every joint (rad or m), within all limits."""
    return 0.02 + 0.01 * math.sin((at - BEGIN) / SECOND)


class Bag:
    """A recording; `at` of each method is in s since its beginning."""

    def __init__(self, path, contract=CONTRACT, rate=10.0, namespace='/r'):
        self.namespace = namespace
        kept = dict(topic.kept_as for topic in recorded(contract, 'png', 90))
        self.kinds = kept
        channels = tuple(
            Channel(self.full(t), type_name(kind), definition(kind)) for t, kind in kept.items()
        )
        facts = {'namespace': namespace, 'robot_type': contract.robot_type, 'rate': f'{rate:g}'}
        self.file = RecordingFile(path, 2**30, channels, facts, to_text(contract))
        self.waiting = []

    def full(self, topic):
        return topic if topic.startswith('/') else f'{self.namespace}/{topic}'

    def put(self, topic, at, message):
        self.waiting.append((BEGIN + round(at * SECOND), topic, message))

    def finish(self, again=()):
        """Write all entries in order of time, then those of `again`, and return the path."""
        pieces = (sorted(piece, key=itemgetter(0)) for piece in (self.waiting, again))
        for i, (stamp, topic, message) in enumerate(chain.from_iterable(pieces)):
            self.file.add(self.full(topic), stamp, serialize_message(message))
            if i % 100 == 0:
                self.file.flush()
        self.file.finish({'end': 'enough'})
        return self.file.path

    def tell(self, at, instruction):
        self.put('instruction', at, String(data=instruction))

    def control(self, at, state, shadow=False):
        self.put('control/state', at, ControlState(state=state, shadow=shadow))

    def feel(self, at, value=None, delay=0.002):
        stamp = BEGIN + round(at * SECOND)
        value = position(stamp) if value is None else value
        names = list(ROBOT.joints)
        message = JointState(name=names, position=[value] * len(names))
        self.put('joint_states', at + delay, stamped(message, stamp))

    def see(self, at, view='front', level=None, delay=0.005, size=(12, 16)):
        """Add an image of one grey level, which identifies the time it was taken."""
        level = round(at * 10) % 256 if level is None else level
        _, data = cv2.imencode('.png', np.full((*size, 3), level, np.uint8))
        message = CompressedImage(format='png', data=data.tobytes())
        stamp = BEGIN + round(at * SECOND)
        topic = f'camera/{view}/image/compressed'
        self.put(topic, at + delay, stamped(message, stamp))

    def command(
        self, at, answers, first=None, source=ActionChunk.FRESH, rows=10, slope=0.001, heard=0.0
    ):
        """Add a chunk whose actions rise by `slope`, from 10 * `slope` * `answers` on.

        answers: time of its observation (s). heard: delay until the recorder received it (s).
        """
        if first is None:
            first = min(math.ceil((at - answers) * 10), rows - 1)  # the first that is not due yet
        values = [answers * 10 * slope + i * slope for i in range(rows)]
        message = ActionChunk(
            dt=0.1,
            chunk_size=rows,
            values=np.repeat(values, len(ROBOT.axes)).tolist(),
            first=first,
            execution_horizon=rows,
            source=source,
            age=at - answers,
            joint_names=list(ROBOT.axes),
        )
        self.put('action_chunk', at + heard, stamped(message, BEGIN + round(answers * SECOND)))

    def lives(self, seconds, instruction='reach', begin=0.0, views=('front', 'wrist')):
        """Add a robot that acts from `begin` on: images 20 Hz, joints 100 Hz, chunks 10 Hz."""
        self.tell(begin, instruction)
        self.control(begin, ControlState.ARMED)
        for i in range(round(seconds * 100)):
            self.feel(begin + i / 100)
        for i in range(round(seconds * 20)):
            for view in views:
                self.see(begin + i / 20, view)
        for i in range(round(seconds * 10)):
            self.command(begin + i / 10 + 0.04, begin + i / 10)
        return self
