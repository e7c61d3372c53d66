"""Parameters are declared from dataclasses, checked by name, and complete in the YAML file."""

from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from rclpy.parameter import Parameter

from embodied_kv.demo.nodes.node import SimParams
from embodied_kv.engine_config import EngineConfig
from embodied_kv.nodes.action import Action, ActionParams
from embodied_kv.nodes.common.parameters import SuiteParams
from embodied_kv.nodes.language import Language, LanguageParams
from embodied_kv.nodes.memory import BranchParams, MemoryParams
from embodied_kv.nodes.mission import MissionParams
from embodied_kv.nodes.observation.inputs import ObservationParams
from embodied_kv.nodes.perception import Perception
from embodied_kv.nodes.recorder import RecorderParams
from embodied_kv.nodes.remote.server_link import RemoteParams
from embodied_kv.nodes.session import SessionParams
from embodied_kv.planning.config import PlanningConfig

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / 'config' / 'robot.yaml'
PARTS = {
    '/**': [
        ('', SuiteParams),
        ('', ObservationParams),
        ('engine.', EngineConfig),
        ('server.', RemoteParams),
    ],
    '/**/action': [('', ActionParams)],
    '/**/language': [('', LanguageParams)],
    '/**/session': [('', SessionParams)],
    '/**/memory': [('', MemoryParams), ('', PlanningConfig), ('', BranchParams)],
    '/**/mission': [('', MissionParams)],
    '/**/recorder': [('', RecorderParams)],
    '/**/sim': [('', SimParams)],
}

ROBOT = {  # values of the file, for the simulated robot; the defaults are none or those of pi0.5
    'contract': 'tabletop',
    'preset': 'tabletop',
    'engine.euler_steps': 4,
    'engine.min_euler_steps': 2,
    'engine.compile': 'auto',
    'engine.rtc': 'trained',
    'engine.memory_rows': -1,
    'engine.memory_keep_ratio': 1.0,
}


def flat(values, prefix=''):
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f'{prefix}{name}.')
        else:
            yield prefix + name, value


def test_the_yaml_holds_every_parameter_with_its_default():
    sections = yaml.safe_load(CONFIG.read_text())
    assert sections.keys() == PARTS.keys()
    for section, parts in PARTS.items():
        defaults = {
            prefix + f.name: list(f.default) if isinstance(f.default, tuple) else f.default
            for prefix, part in parts
            for f in fields(part)
        }
        if section == '/**':
            defaults |= ROBOT
        assert dict(flat(sections[section]['ros__parameters'])) == defaults


def test_the_yaml_reaches_every_node_under_a_namespace(ros, tmp_path):
    text = (
        CONFIG.read_text()
        .replace('prompt_interval_frames: 2', 'prompt_interval_frames: 7')
        .replace('missed_chunk_limit: 5', 'missed_chunk_limit: 9')
    )
    path = tmp_path / 'other.yaml'
    path.write_text(text.replace('rows: 16', 'rows: 17', 1))
    arguments = dict(cli_args=['--ros-args', '--params-file', str(path)], namespace='/left/arm')
    for kind, name, value in (
        (Perception, 'engine.rows', 17),
        (Action, 'missed_chunk_limit', 9),
        (Language, 'prompt_interval_frames', 7),
    ):
        node = kind(**arguments)
        assert node.get_parameter(name).value == value
        assert not node.params.problems
        node.destroy_node()


@pytest.mark.parametrize('kind', [Perception, Action, Language])
def test_every_parameter_is_described_with_its_range(ros, kind):
    node = kind()
    for prefix, part in (*PARTS['/**'][::2], ('', ActionParams), ('', LanguageParams)):
        for f in fields(part):
            if not node.has_parameter(prefix + f.name):
                continue
            described = node.describe_parameter(prefix + f.name)
            assert described.description.startswith(f.metadata['help'])
            assert described.read_only == (f.metadata.get('when', 'start') == 'start')
            ranges = [*described.integer_range, *described.floating_point_range]
            if 'range' in f.metadata and not isinstance(f.default, tuple):
                assert (ranges[0].from_value, ranges[0].to_value) == f.metadata['range']
    node.destroy_node()


@pytest.mark.parametrize(
    'kind, name, value, said',
    [
        (Perception, 'engine.rows', 1, 'configure failed: parameter engine.rows'),
        (Perception, 'control_frequency', float('nan'), 'parameter control_frequency'),
        (Perception, 'control_frequency', 10, 'parameter control_frequency'),
        (
            Perception,
            'engine.reserved_rows',
            16,
            'must be below engine.rows 16 (got 16)',
        ),
        (Perception, 'preset', 'huge', 'preset must be one of pi05'),
        (
            Perception,
            'contract',
            '',
            'parameter contract must be one of aloha',
        ),
        (Perception, 'contract', 'so100', 'contract must be a file or one of aloha'),
        (Perception, 'checkpoint', '', "preset 'tiny' has no bundled checkpoint"),
        (Perception, 'checkpoint', '/nowhere', '/nowhere'),
        (
            Perception,
            'engine.device',
            'gpu',
            'engine.device must be cpu or cuda',
        ),
        (Action, 'missed_chunk_limit', 0, 'parameter missed_chunk_limit'),
        (Action, 'setpoint_rate', 0.0, 'parameter setpoint_rate'),
        (Action, 'robot_description', '<arm/>', 'robot_description must be a URDF'),
        (Language, 'temperature', -1.0, 'parameter temperature'),
    ],
)
def test_a_wrong_value_fails_configure_with_its_name(robot, capfd, kind, name, value, said):
    node = robot.bring(kind, **{name: value})
    assert node.trigger_configure().name == 'FAILURE'
    complaint = capfd.readouterr().err
    assert 'configure failed:' in complaint and said in complaint
    assert 'Traceback' not in complaint


def test_a_wrong_value_can_be_set_right_while_the_node_lives(robot):
    node = robot.bring(Action, missed_chunk_limit=0)
    assert node.trigger_configure().name == 'FAILURE'
    assert node.set_parameters([Parameter('missed_chunk_limit', value=3)])[0].successful
    assert node.trigger_configure().name == 'SUCCESS'


def test_a_value_may_change_as_late_as_it_says(robot):
    perception, _, language = robot.up(Perception, Action, Language)
    language.set_parameters([Parameter('prompt_interval_frames', value=2)])
    assert language.params.read(LanguageParams).prompt_interval_frames == 2
    wrong = language.set_parameters([Parameter('prompt_interval_frames', value=-2)])[0]
    assert not wrong.successful and 'prompt_interval_frames' in wrong.reason
    fixed = perception.set_parameters([Parameter('max_image_skew', value=0.5)])[0]
    assert (
        not fixed.successful
        and 'max_image_skew is fixed while the node is configured' in fixed.reason
    )
    never = perception.set_parameters([Parameter('engine.rows', value=8)])[0]
    assert not never.successful and 'read-only' in never.reason
    perception.trigger_deactivate()
    perception.trigger_cleanup()
    assert perception.set_parameters([Parameter('max_image_skew', value=0.5)])[0].successful
