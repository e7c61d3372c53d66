"""The service `record` writes what a suite observes, does and publishes to a file.

Any reader of MCAP can read the file.
"""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from capsule_suite import ask, begin, silent, speaking
from mcap.reader import make_reader
from mcap_ros2.decoder import DecoderFactory
from rclpy.serialization import deserialize_message
from rosbags.highlevel import AnyReader

from embodied_kv.data.recording_reader import Recording
from embodied_kv.msg import ActionChunk, RecordingState
from embodied_kv.nodes.recorder import Recorder
from embodied_kv.robots.reading import load
from embodied_kv.srv import (
    CapsuleFork,
    CapsuleRestore,
    CapsuleRollback,
    CapsuleSnapshot,
    Record,
)

WAIT = 180  # s; on an idle machine it takes a moment
VERBS = {
    CapsuleSnapshot: 'snapshot',
    CapsuleFork: 'fork',
    CapsuleRollback: 'rollback',
    CapsuleRestore: 'restore',
}
TOPICS = {
    *('camera/front/image/compressed', 'camera/wrist/image/compressed', 'joint_states'),
    *('instruction', 'action_chunk', 'control/state', 'joint_trajectory'),
    *('language/text', 'capsule/events', 'recording/state'),
}


def recorded(robot, record, name=''):
    response = robot.call(Record, 'record', record=record, name=name)
    assert response.success, response.message
    return response


@pytest.fixture(scope='module')
def heard(robots_of_module, tmp_path_factory):
    """Record a suite; return the robot, the response, and chunks that the recorder received."""
    robot, folder = robots_of_module(), tmp_path_factory.mktemp('recordings')
    begin(robot, folder / 'capsules')
    recorder = robot.up(Recorder, recording_directory=str(folder))
    took = taken(recorder)
    recorded(robot, record=True, name='walk')
    silent()
    ask(robot)
    for kind, verb in VERBS.items():
        given = {'branches': 1} if verb == 'fork' else {}
        response = robot.call(kind, f'capsule/{verb}', name='home', **given)
        assert response.success, response.message
    speaking()
    for happened in (
        lambda: all(took.get(topic) for topic in TOPICS),
        lambda: len(took['capsule/events']) == len(VERBS),
        lambda: len(took['action_chunk']) >= 5,
        lambda: any(c.source == ActionChunk.FRESH for c in took['action_chunk']),
        lambda: any(text.finished for text in took['language/text']),
        lambda: any(text.text for text in took['language/text']),
        lambda: recorder._queue.file.messages > 40,
    ):
        robot.until(happened, timeout=WAIT)
    chunks = took['action_chunk'][:5]
    return robot, recorded(robot, record=False), chunks


def taken(recorder):
    """Return the messages that the recorder receives from now on, by topic."""
    found, put = defaultdict(list), recorder._put
    kinds = dict(topic.kept_as for topic in recorder._topics)

    def noted(topic, data, convert=None):
        put(topic, data, convert)
        found[topic].append(
            data if convert else deserialize_message(data, kinds.get(topic, RecordingState))
        )

    recorder._put = noted
    return found


def read(path, namespace):
    """Return the messages of a file, by topic."""
    found = {}
    with open(path, 'rb') as stream:
        reader = make_reader(stream, decoder_factories=[DecoderFactory()])
        for _, channel, _, message in reader.iter_decoded_messages():
            topic = channel.topic.removeprefix(f'{namespace}/')
            found.setdefault(topic, []).append(message)
    return found


def test_every_kind_of_thing_is_in_the_file(heard):
    robot, response, _ = heard
    found = read(response.path, robot.namespace)
    assert found.keys() >= TOPICS
    assert sum(map(len, found.values())) == response.messages
    assert found['instruction'][0].data == 'reach'
    events = found['capsule/events']
    done = [(event.operation, event.name) for event in events]
    assert done == [(verb, 'home') for verb in VERBS.values()]
    assert [bool(event.depth) for event in events] == [False, True, True, True]
    assert ''.join(text.text for text in found['language/text'])
    assert found['control/state'][0].state == 1  # armed, although published earlier


def place(chunk):
    stamp = chunk.header.stamp
    return chunk.sequence, chunk.source, chunk.first, chunk.age, stamp.sec, stamp.nanosec


def test_chunks_are_in_the_file_as_they_were_published(heard):
    robot, response, chunks = heard
    kept = read(response.path, robot.namespace)['action_chunk']
    fields = ('steps', 'age', 'delay', 'latency', 'deadline_met', 'source', 'sequence', 'first')
    by_place = {place(c): c for c in kept}
    for chunk in chunks:
        same = by_place[place(chunk)]
        for field in fields:
            np.testing.assert_equal(getattr(same, field), getattr(chunk, field))  # NaN equals NaN
        assert list(same.values) == list(chunk.values)
    assert any(chunk.source == ActionChunk.FRESH and chunk.steps for chunk in kept)


def test_what_is_not_in_the_file_is_counted_in_it(heard):
    robot, response, _ = heard
    state = read(response.path, robot.namespace)['recording/state'][-1]
    assert sum(state.dropped) == response.dropped


def test_the_contract_comes_with_it(heard):
    robot, response, _ = heard
    recording = Recording(Path(response.path))
    assert recording.contract == load('tabletop')
    assert recording.start['namespace'] == robot.namespace
    assert recording.end['end'] == 'requested'


def test_rosbags_reads_every_message(heard):
    _, response, _ = heard
    with AnyReader([Path(response.path)]) as reader:
        count = 0
        for connection, _, data in reader.messages():
            message = reader.deserialize(data, connection.msgtype)
            count += message is not None
            if connection.topic.endswith('action_chunk') and message.chunk_size:
                assert np.isfinite(message.values).all()
    assert count == response.messages
