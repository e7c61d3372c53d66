"""A misspelt parameter name fails configure; the shipped files contain none."""

from pathlib import Path

import pytest

from embodied_kv.nodes.action import Action
from embodied_kv.nodes.language import Language
from embodied_kv.nodes.memory import Memory
from embodied_kv.nodes.perception import Perception
from embodied_kv.nodes.policy_server import PolicyServerNode
from embodied_kv.nodes.recorder import Recorder
from embodied_kv.nodes.remote.action import RemoteAction
from embodied_kv.nodes.remote.language import RemoteLanguage
from embodied_kv.nodes.remote.robot import RemoteMemory, RemoteSession
from embodied_kv.nodes.session import Session

CONFIG = Path(__file__).parents[2] / 'config'


def given(*names):
    return ['--ros-args', *(word for name in names for word in ('-p', f'{name}:=true'))]


@pytest.mark.parametrize('name', ['shaddow', 'shdow', 'shadou', 'hsadow', 'shadows'])
def test_one_slip_is_enough(ros, name):
    node = Action(cli_args=given(name))
    assert list(node.params.problems) == ['shadow']
    node.end()


def test_configure_fails_with_the_name_that_was_meant(ros, capfd):
    node = Action(cli_args=given('shaddow', 'engine.time_budgett'))
    assert node.trigger_configure().name == 'FAILURE'
    said = capfd.readouterr().err
    assert 'parameter shaddow is unknown: did you mean shadow?' in said
    assert 'parameter engine.time_budgett is unknown: did you mean engine.time_budget?' in said
    node.end()


def test_a_name_that_is_another_nodes_is_passed_over(ros):
    node = Action(cli_args=given('use_sim_time', 'somebody_elses', 'capsule_directory'))
    assert not node.params.problems
    node.end()


@pytest.mark.parametrize(
    ('file', 'kinds'),
    [
        ('robot.yaml', (Perception, Action, Language, Session, Memory, Recorder)),
        (
            'fleet.yaml',
            (PolicyServerNode, RemoteAction, RemoteLanguage, RemoteSession, RemoteMemory),
        ),
    ],
)
def test_the_shipped_files_misspell_nothing(ros, file, kinds):
    for kind in kinds:
        node = kind(cli_args=['--ros-args', '--params-file', str(CONFIG / file)])
        assert not node.params.problems
        node.end()
