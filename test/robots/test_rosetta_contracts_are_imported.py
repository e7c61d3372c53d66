"""A rosetta contract is converted to this project; a table lists what has no counterpart."""

import runpy

import pytest
import yaml

from embodied_kv.contracts.rosetta import convert
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.reading import ContractError, load, of_text, parse

ARM = """
robot_type: crane
robot_interface: ros2
fps: 25
x-qos: &sensor {reliability: best_effort, depth: 5}
observations:
  observation.images.hook:
    channel: {topic: /hook/image/compressed, type: sensor_msgs/msg/CompressedImage, qos: *sensor}
    align: {strategy: hold, timeline: header}
    apply: [resize: [240, 320]]
  observation.state:
    channel: {topic: /crane/joints, type: sensor_msgs/msg/JointState, qos: *sensor}
    align: {strategy: asof, timeline: header, tolerance_ms: 20}
    select: [position.slew, position.luff, velocity.slew]
    apply: [rad2deg]
actions:
  action:
    channel: {topic: /crane/target, type: trajectory_msgs/msg/JointTrajectory, safety: hold}
    align: {strategy: hold, timeline: header}
    select: [position.slew, position.luff]
    apply: [clamp: {min: -1.0, max: 1.0}, rad2deg]
"""
SECTIONS = """
tasks: {task: {channel: {topic: /prompt, type: std_msgs/msg/String}}}
rewards: {next.reward: {channel: {topic: /reward, type: std_msgs/msg/Float64, dtype: float64},
  align: {strategy: hold, timeline: receive}}}
teleop: {events: {channel: {topic: /joy, type: sensor_msgs/msg/Joy}, select: {success: buttons.1}}}
adjunct: [{channel: {topic: /tf, type: tf2_msgs/msg/TFMessage}}]
"""


def converted(text=ARM, **changes):
    for old, new in changes.items():
        text = text.replace(old, new)
    done = convert(text, 'crane.yaml', 4.0, 'base')
    return done, parse(done.values, 'crane')


def lost(done):
    return {loss.key: loss for loss in done.lost}


def test_channels_selections_units_and_bounds_are_kept():
    done, contract = converted()
    robot = Embodiment.of(contract)
    assert (contract.robot_type, contract.fps) == ('crane', 25)
    view = contract.views['observation.images.hook']
    assert view.channel.topic == '/hook/image/compressed'
    assert [(d.topic, d.select, d.unit) for d in robot.state.dimensions] == [
        ('/crane/joints', 'position.slew', 'deg'),
        ('/crane/joints', 'position.luff', 'deg'),
        ('/crane/joints', 'velocity.slew', 'deg/s'),
    ]
    for dimension in robot.actions.dimensions:
        assert dimension.topic == '/crane/target' and not dimension.relative
        assert dimension.clamp == pytest.approx((-57.29578, 57.29578))  # clamped in rad
    assert [limit.acceleration for limit in contract.limits.values()] == [4.0, 4.0]
    assert not done.changes_numbers


def test_bounds_after_the_conversion_are_in_degrees():
    apply = 'apply: [clamp: {min: -1.0, max: 1.0}, rad2deg]'
    _, contract = converted(**{apply: 'apply: [rad2deg, clamp: {min: -90, max: 90}]'})
    assert contract.action[0].clamp == ((-90.0, 90.0),) * 2


def test_what_has_no_counterpart_is_listed():
    done, _ = converted(ARM + SECTIONS)
    found = lost(done)
    assert found['tasks'].value == '/prompt' and '--task-topic' in found['tasks'].instead
    assert found['rewards'].value == '/reward' and found['adjunct'].value == '/tf'
    assert 'takeover' in found['teleop.events'].instead
    assert found['observations.observation.images.hook.apply.resize'].value == '240, 320'
    assert any(key.startswith('qos of') and key.endswith('1 more') for key in found)
    assert any(key.startswith('safety of actions.action') for key in found)
    assert [loss.key for loss in done.assumed] == ['limits.*.acceleration']
    assert not done.changes_numbers


@pytest.mark.parametrize(
    ('old', 'new', 'key'),
    [
        ('position.luff, velocity.slew', 'position.luff, effort.slew', 'state.select'),
        ('sensor_msgs/msg/JointState, qos', 'nav_msgs/msg/Odometry, qos', 'state'),
        ('safety: hold', 'encoder: "crane.codecs:encode"', 'action.channel.encoder'),
        ('  action:\n', '  action.winch:\n', 'actions.action.winch'),
    ],
)
def test_numbers_that_cannot_be_read_or_commanded_are_reported(old, new, key):
    done = convert(ARM.replace(old, new), 'crane.yaml', 4.0, 'base')
    assert done.changes_numbers
    (loss,) = [loss for loss in done.lost if loss.instead.endswith('does not fit')]
    assert loss.key.endswith(key)


def test_codecs_are_not_imported(tmp_path, monkeypatch):
    (tmp_path / 'crane_codecs.py').write_text('raise SystemExit("imported")\n')
    monkeypatch.syspath_prepend(tmp_path)
    text = ARM.replace('safety: hold', 'encoder: "crane_codecs:encode"')
    assert convert(text, 'crane.yaml', 4.0, 'base').changes_numbers


def test_twist_has_a_unit_for_each_kind_of_axis_and_the_given_frame():
    text = ARM.replace('trajectory_msgs/msg/JointTrajectory', 'geometry_msgs/msg/TwistStamped')
    text = text.replace(
        'select: [position.slew, position.luff]\n    apply: [clamp', 'apply: [clamp'
    )
    text = text.replace(
        'apply: [clamp: {min: -1.0, max: 1.0}, rad2deg]',
        'select: [twist.linear.x, twist.angular.z]',
    )
    done, contract = converted(text)
    assert [(s.unit, s.frame) for s in contract.action] == [('m/s', 'base'), ('rad/s', 'base')]
    assert 'frame of twists' in [loss.key for loss in done.assumed]


def test_radians_are_stated_as_an_assumption():
    done, contract = converted(**{'apply: [rad2deg]': 'kind: continuous'})
    assert [source.unit for source in contract.state] == ['rad', 'rad/s']
    assert 'rad for slew, luff' in [loss.value for loss in done.assumed]


@pytest.mark.parametrize(
    ('text', 'line'),
    [
        ('robot_type: x\nfps: 5\n', 'must be a contract of rosetta with robot_interface'),
        ('[', 'must be YAML'),
        (ARM.replace('ros2', 'dora'), 'robot_interface must be ros2 .got dora.'),
        (ARM.replace('observations:', 'observations: [1]\nolder:'), 'observations must be a map'),
        (ARM.replace('channel: {topic: /crane/joints', 'from: {topic: /x'), 'must have topic and'),
    ],
)
def test_text_that_is_no_contract_of_rosetta_is_refused(text, line):
    with pytest.raises(ContractError, match=line):
        convert(text, 'crane.yaml', 4.0, 'base')


def test_reader_of_contracts_names_the_command():
    with pytest.raises(ContractError) as error:
        of_text(ARM + SECTIONS, 'crane.yaml')
    last = str(error.value).splitlines()[-1]
    assert 'robot_interface' in last and 'are keys of rosetta' in last
    assert last.endswith('python -m embodied_kv.contracts.import crane.yaml')


def test_command_writes_a_contract_once_and_prints_one_table(tmp_path, monkeypatch, capsys):
    (tmp_path / 'crane.yaml').write_text(ARM + SECTIONS)
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr('sys.argv', ['import', *arguments])
        runpy.run_module('embodied_kv.contracts.import', run_name='__main__')

    run('crane.yaml', '--acceleration', '7.5')
    shown = capsys.readouterr().out
    assert shown.count('instead') == 1 and '/prompt' in shown
    assert '1 views, 3 numbers of the state, 2 of an action' in shown
    contract = load(tmp_path / 'crane_contract.yaml')
    assert contract.limits['luff'].acceleration == 7.5
    with pytest.raises(SystemExit, match='1'):
        run('crane.yaml')
    assert 'must be a new file' in capsys.readouterr().err


def test_contract_that_needs_completion_is_written_and_refused(tmp_path, monkeypatch, capsys):
    """A joint that is commanded but not measured needs the topic of its position."""
    text = ARM.replace('[position.slew, position.luff, velocity.slew]', '[position.slew]')
    (tmp_path / 'crane.yaml').write_text(text)
    arguments = ['import', str(tmp_path / 'crane.yaml'), str(tmp_path / 'out.yaml')]
    monkeypatch.setattr('sys.argv', arguments)
    with pytest.raises(SystemExit, match='1'):
        runpy.run_module('embodied_kv.contracts.import', run_name='__main__')
    assert 'feedback of luff is missing; write the topic' in capsys.readouterr().err
    assert yaml.safe_load((tmp_path / 'out.yaml').read_text())['robot_type'] == 'crane'
