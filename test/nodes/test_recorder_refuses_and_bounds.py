"""What a recorder does not do, and what it says then."""

import pytest

from embodied_kv.data.recording_file import PART
from embodied_kv.msg import RecordingState
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.recorder import MIB, Recorder
from embodied_kv.srv import Record

WAIT = 180  # s, for what takes a moment where nothing else runs


@pytest.fixture
def states(robot):
    heard = []
    robot.node.create_subscription(RecordingState, 'recording/state', heard.append, qos.STATUS)
    return heard


def record(robot, **fields):
    return robot.call(Record, 'record', **fields)


def refused(robot, **fields):
    response = record(robot, **fields)
    assert not response.ok
    return response.message


def test_it_is_off_until_it_is_asked(robot, tmp_path):
    recorder = robot.up(Recorder, folder=str(tmp_path))
    assert recorder._queue is None and not recorder._listening
    assert 'nothing is recorded' in refused(robot, on=False)
    assert list(tmp_path.rglob('*.mcap*')) == []


def test_without_a_folder_nothing_is_recorded(robot):
    robot.up(Recorder, folder='')
    assert 'name the folder' in refused(robot, on=True)


def test_with_the_parameter_it_begins_at_activation_and_ends_with_it(robot, tmp_path):
    recorder = robot.up(Recorder, folder=str(tmp_path), record=True)
    robot.until(lambda: recorder._queue.messages > 10, timeout=WAIT)
    recorder.trigger_deactivate()
    (path,) = tmp_path.rglob('*.mcap')
    assert path.parent == tmp_path / robot.namespace.strip('/')


@pytest.mark.parametrize('name', ['../out', '/tmp/x', 'a/b', '.hidden', 'new\nline', 'x' * 200])
def test_no_name_leads_out_of_the_folder(robot, tmp_path, name):
    robot.up(Recorder, folder=str(tmp_path))
    assert 'write up to 100 letters' in refused(robot, on=True, name=name)
    assert list(tmp_path.rglob('*.mcap*')) == []


def test_one_recording_at_a_time_and_none_over_another(robot, tmp_path):
    robot.up(Recorder, folder=str(tmp_path))
    assert record(robot, on=True, name='walk').ok
    assert 'end it first' in refused(robot, on=True, name='other')
    assert record(robot, on=False).ok
    assert 'choose another name' in refused(robot, on=True, name='walk')


def test_a_full_folder_is_refused(robot, tmp_path):
    folder = tmp_path / robot.namespace.strip('/')
    folder.mkdir()
    (folder / 'old.mcap').write_bytes(bytes(2 * MIB))
    robot.up(Recorder, folder=str(tmp_path), disk_mib=2)
    assert 'raise recorder.disk_mib' in refused(robot, on=True)


def test_a_recording_that_grew_too_large_ends_and_says_so(robot, tmp_path, states):
    options = {'disk_mib': 2, 'image_compression': 'none'}
    large = {'height': 300, 'width': 300, 'timeout': WAIT}
    recorder = robot.up(Recorder, folder=str(tmp_path), record=True, **options)
    robot.until(lambda: any('disk_mib' in s.message for s in states), **large)
    (path,) = tmp_path.rglob('*.mcap')
    assert path.stat().st_size <= 2 * MIB and recorder._queue is None
    assert not list(tmp_path.rglob(f'*{PART}'))
    assert not states[-1].recording and states[-1].messages


def test_images_that_are_none_are_counted_and_the_rest_goes_on(robot, tmp_path, states):
    recorder = robot.up(Recorder, folder=str(tmp_path), record=True)
    dropped = f'{robot.namespace}/camera/front/image/compressed'
    robot.until(lambda: recorder._queue.dropped[dropped], encoding='16UC1', timeout=WAIT)
    robot.until(lambda: any(dropped in state.topics for state in states), timeout=WAIT)
    assert 'is not a colour image' in recorder._queue.fault
    level, message, values = recorder.report()
    assert 'not in' in message and int(values['dropped']) > 0
    before = recorder._queue.messages
    robot.until(lambda: recorder._queue.messages > before + 10, timeout=WAIT)


def test_a_part_of_a_crash_is_told(robot, tmp_path, capfd):
    folder = tmp_path / robot.namespace.strip('/')
    folder.mkdir()
    (folder / f'walk.mcap{PART}').write_bytes(b'')
    robot.up(Recorder, folder=str(tmp_path))
    assert 'python -m embodied_kv.data.repair' in capfd.readouterr().err
    assert 'choose another name' in refused(robot, on=True, name='walk')
