"""examples/rrbot: contract, parameters, URDF and controllers name the same joints and limits."""

from dataclasses import fields
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml

from embodied_kv.config import preset
from embodied_kv.control.limits_from_contract import limits_from_contract
from embodied_kv.nodes.common.parameters import SuiteParams
from embodied_kv.robots.embodiment import Embodiment

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / 'examples' / 'rrbot'


@pytest.fixture
def parameters():
    return yaml.safe_load((EXAMPLE / 'robot.yaml').read_text())['/**']['ros__parameters']


@pytest.fixture
def robot(parameters):
    return Embodiment.load(str(ROOT / parameters['contract']))


@pytest.fixture
def urdf():
    return (EXAMPLE / 'rrbot.urdf').read_text()


def test_parameters_are_known(parameters):
    assert set(parameters) <= {field.name for field in fields(SuiteParams)}


def test_untrained_weights_of_the_preset_fit_the_contract(parameters, robot):
    assert parameters['checkpoint'] == 'random'
    robot.check(robot.adapted(preset(parameters['preset'])))


def test_limits_are_those_of_the_urdf(robot, urdf):
    own, both = limits_from_contract(robot, ''), limits_from_contract(robot, urdf)
    joints = {j.get('name'): j for j in ElementTree.fromstring(urdf).findall('joint')}
    for name in ('lower', 'upper', 'velocity'):
        np.testing.assert_array_equal(getattr(own, name), getattr(both, name))
        told = [float(joints[joint].find('limit').get(name)) for joint in own.joints]
        np.testing.assert_array_equal(getattr(own, name), told)


def test_the_controller_moves_the_joints_of_the_contract(robot, urdf):
    (output,) = robot.outputs
    controllers = yaml.safe_load((EXAMPLE / 'controllers.yaml').read_text())
    name, _, last = output.topic.partition('/')
    assert last == 'joint_trajectory'
    assert controllers[name]['ros__parameters']['joints'] == list(output.axes)
    mocked = ElementTree.fromstring(urdf).find('ros2_control').findall('joint')
    assert [joint.get('name') for joint in mocked] == list(output.axes)


def test_the_page_links_to_the_commands_of_the_example():
    page = (ROOT / 'docs' / 'robots.md').read_text()
    assert 'ros2_control_node' in (EXAMPLE / 'README.md').read_text()
    assert 'ros2_control_node' not in page and '(../examples/rrbot/README.md)' in page
