"""The recorder refuses invalid requests, keeps its limits, and reports the reasons."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from rclpy.duration import Duration
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import String

from embodied_kv.data.recording_file import PART, RecordingFile
from embodied_kv.data.recording_reader import Recording
from embodied_kv.msg import RecordingState
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.recorder import MIB, Recorder
from embodied_kv.nodes.recording.topics import OWN, checked, recorded
from embodied_kv.robots.channels import GOALS
from embodied_kv.robots.reading import load, shipped
from embodied_kv.srv import Record

WAIT = 180  # s; on an idle machine it takes a moment


@pytest.fixture
def states(robot):
    heard = []
    robot.node.create_subscription(RecordingState, 'recording/state', heard.append, qos.STATUS)
    return heard


def record(robot, **fields):
    return robot.call(Record, 'record', **fields)


def refused(robot, **fields):
    response = record(robot, **fields)
    assert not response.success
    return response.message


def test_it_is_off_until_it_is_asked(robot, tmp_path):
    recorder = robot.up(Recorder, recording_directory=str(tmp_path))
    assert recorder._queue is None and not recorder._listening
    assert 'while nothing is recorded' in refused(robot, record=False)
    assert list(tmp_path.rglob('*.mcap*')) == []


def test_without_a_folder_nothing_is_recorded(robot):
    robot.up(Recorder, recording_directory='')
    assert 'recorder.recording_directory must be a directory' in refused(robot, record=True)


def test_with_the_parameter_it_begins_at_activation_and_ends_with_it(robot, tmp_path):
    recorder = robot.up(Recorder, recording_directory=str(tmp_path), record=True)
    robot.until(lambda: recorder._queue.file.messages > 10, timeout=WAIT)
    recorder.trigger_deactivate()
    (path,) = tmp_path.rglob('*.mcap')
    assert path.parent == tmp_path / robot.namespace.strip('/')
    assert (path.parent.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)


@pytest.mark.parametrize('name', ['../out', '/tmp/x', 'a/b', '.hidden', 'new\nline', 'x' * 200])
def test_no_name_leads_out_of_the_folder(robot, tmp_path, name):
    robot.up(Recorder, recording_directory=str(tmp_path))
    assert 'must be up to 100 letters' in refused(robot, record=True, name=name)
    assert list(tmp_path.rglob('*.mcap*')) == []


def test_one_recording_at_a_time_and_none_over_another(robot, tmp_path):
    robot.up(Recorder, recording_directory=str(tmp_path))
    assert record(robot, record=True, name='walk').success
    assert 'end it first' in refused(robot, record=True, name='other')
    assert record(robot, record=False).success
    assert 'choose another name' in refused(robot, record=True, name='walk')


def test_a_full_folder_is_refused(robot, tmp_path):
    folder = tmp_path / robot.namespace.strip('/')
    folder.mkdir()
    (folder / 'old.mcap').write_bytes(bytes(2 * MIB))
    robot.up(Recorder, recording_directory=str(tmp_path), disk_mib=2)
    assert 'raise recorder.disk_mib' in refused(robot, record=True)


def test_a_recording_that_grew_too_large_ends_and_says_so(robot, tmp_path, states):
    options = {'disk_mib': 2, 'image_compression': 'none'}
    large = {'height': 300, 'width': 300, 'timeout': WAIT}
    recorder = robot.up(Recorder, recording_directory=str(tmp_path), record=True, **options)
    robot.until(lambda: any('disk_mib' in s.message for s in states), **large)
    (path,) = tmp_path.rglob('*.mcap')
    assert path.stat().st_size <= 2 * MIB and recorder._queue is None
    assert not list(tmp_path.rglob(f'*{PART}'))
    assert not states[-1].recording and states[-1].messages


def test_images_that_are_none_are_counted_and_the_rest_goes_on(robot, tmp_path, states):
    recorder = robot.up(Recorder, recording_directory=str(tmp_path), record=True)
    dropped = f'{robot.namespace}/camera/front/image/compressed'
    robot.until(lambda: recorder._queue.dropped[dropped], encoding='16UC1', timeout=WAIT)
    robot.until(lambda: any(dropped in state.topics for state in states), timeout=WAIT)
    assert 'is not a colour image' in recorder._queue.fault
    level, message, values = recorder.report()
    assert 'not in' in message and int(values['dropped']) > 0
    before = recorder._queue.file.messages
    robot.until(lambda: recorder._queue.file.messages > before + 10, timeout=WAIT)


def test_a_part_of_a_crash_is_told(robot, tmp_path, capfd):
    folder = tmp_path / robot.namespace.strip('/')
    folder.mkdir()
    (folder / f'walk.mcap{PART}').write_bytes(b'')
    robot.up(Recorder, recording_directory=str(tmp_path))
    assert 'python -m embodied_kv.data.repair' in capfd.readouterr().err
    assert 'choose another name' in refused(robot, record=True, name='walk')


def test_a_part_that_is_being_written_is_no_part_of_a_crash(robot, tmp_path, capfd):
    folder = tmp_path / robot.namespace.strip('/')
    folder.mkdir()
    file = RecordingFile(folder / 'other.mcap', MIB, (), {}, '')
    robot.up(Recorder, recording_directory=str(tmp_path))
    assert 'was cut off' not in capfd.readouterr().err
    file.abandon()


def test_a_finish_that_fails_is_said_and_names_what_is_left(robot, tmp_path, states):
    recorder = robot.up(Recorder, recording_directory=str(tmp_path))
    response = record(robot, record=True, name='walk')
    Path(response.path).write_bytes(b'of somebody else')
    message = refused(robot, record=False)
    assert f'walk.mcap{PART} is left unfinished' in message and 'repair' in message
    assert Path(response.path).read_bytes() == b'of somebody else' and recorder._queue is None
    robot.until(lambda: states[-1].path.endswith(PART), timeout=WAIT)


def test_where_nobody_can_listen_no_recording_is_left(robot, tmp_path, monkeypatch):
    recorder = robot.up(Recorder, recording_directory=str(tmp_path))
    listen, first = recorder._listen, recorder._topics[0]

    def some(topic):
        if topic is not first:
            raise RuntimeError('no more subscriptions')
        return listen(topic)

    monkeypatch.setattr(recorder, '_listen', some)
    refused(robot, record=True, name='walk')
    assert recorder._queue is None and not recorder._listening
    assert not list(tmp_path.rglob(f'*{PART}'))
    monkeypatch.undo()
    assert record(robot, record=True, name='again').success


def told(path):
    """Return the instruction at the start of a recording, or None."""
    messages = Recording(Path(path)).messages()
    return next((m.read().data for m in messages if m.topic == 'instruction'), None)


def test_configured_again_it_knows_what_was_told(robot, tmp_path):
    recorder = robot.up(Recorder, recording_directory=str(tmp_path), instruction='reach')
    robot.until(lambda: robot.instruction.get_subscription_count(), timeout=WAIT)
    robot.instruction.publish(String(data='pick'))
    robot.until(lambda: recorder._instruction == 'pick', timeout=WAIT)
    for change in ('deactivate', 'cleanup', 'configure', 'activate'):
        assert getattr(recorder, f'trigger_{change}')().name == 'SUCCESS'
    assert record(robot, record=True, name='walk').success
    assert told(record(robot, record=False).path) == 'pick'


def test_where_no_instruction_is_known_none_is_written(robot, tmp_path):
    robot.up(Recorder, recording_directory=str(tmp_path), instruction='')
    assert record(robot, record=True, name='walk').success
    assert told(record(robot, record=False).path) is None


def test_what_waits_with_the_middleware_is_taken_at_the_end(robot, tmp_path):
    recorder = robot.up(Recorder, recording_directory=str(tmp_path))
    assert record(robot, record=True, name='walk').success
    speaker = robot.node.create_publisher(String, 'instruction', 10)
    robot.until(lambda: speaker.get_subscription_count() >= 2, show=False, timeout=WAIT)
    speaker.publish(String(data='last'))
    speaker.wait_for_all_acked(Duration(seconds=WAIT))
    recorder._end('enough')
    (path,) = tmp_path.rglob('*.mcap')
    words = [m.read().data for m in Recording(path).messages() if m.topic == 'instruction']
    assert words[-1] == 'last'


def test_a_compressed_image_that_was_cut_off_is_refused_and_a_whole_one_kept():
    whole = cv2.imencode('.jpg', np.zeros((8, 8, 3), np.uint8))[1].tobytes()
    kept = serialize_message(CompressedImage(format='jpeg', data=whole))
    assert checked(kept) == kept
    with pytest.raises(ValueError):
        checked(serialize_message(CompressedImage(format='jpeg', data=whole[:-40])))


@pytest.mark.parametrize('name', shipped())
def test_topics_of_each_contract_are_recorded_without_actions_of_controllers(name):
    contract = load(name)
    topics = {topic.topic: topic for topic in recorded(contract, 'jpeg', 90)}
    for source in contract.action:
        assert (source.channel.topic in topics) == (source.channel.type not in GOALS)
    assert topics.keys() >= {view.channel.topic for view in contract.views.values()} | OWN.keys()
