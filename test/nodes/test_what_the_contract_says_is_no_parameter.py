"""The contract defines joints, views and limits; old parameters for them are refused.

Its limits must lie within those of a URDF, which also provides limits that it leaves open.
"""

import pytest
import yaml

from embodied_kv.nodes.action import Action
from embodied_kv.nodes.control import robot_description
from embodied_kv.nodes.perception import Perception
from embodied_kv.robots.reading import SHIPPED, load

LIMITS = load('tabletop').limits


def urdf(**changed):
    """Return a URDF of the joints of `tabletop`. changed: lower limits by joint."""
    joints = ''.join(
        f'<joint name="{name}" type="revolute"><parent link="base"/><child link="{name}"/>'
        f'<limit lower="{changed.get(name, of.position[0])}" upper="{of.position[1]}" '
        f'velocity="{of.velocity}" effort="1"/></joint><link name="{name}"/>'
        for name, of in LIMITS.items()
    )
    return f'<robot name="tabletop"><link name="base"/>{joints}</robot>'


def configured(robot, kind, **parameters):
    node = robot.bring(kind, **parameters)
    return node.trigger_configure().name == 'SUCCESS'


@pytest.mark.parametrize(
    'kind, old, value',
    [
        (Perception, 'joint_names', ['a', 'b']),
        (Perception, 'views', ['front']),
        (Action, 'lower_limits', [0.0]),
        (Action, 'max_joint_step', [0.5]),
    ],
)
def test_a_parameter_that_is_no_more_is_refused(robot, capfd, kind, old, value):
    assert not configured(robot, kind, **{old: value})
    assert f'parameter {old} was removed; use ' in capfd.readouterr().err


def test_limits_within_the_urdf_are_taken(robot):
    assert configured(robot, Action, robot_description=urdf())


def test_limits_wider_than_the_urdf_are_refused(robot, capfd):
    assert not configured(robot, Action, robot_description=urdf(elbow=-1.0))
    said = capfd.readouterr().err
    assert 'joint elbow: lower limit must be within -1, the hard limit' in said


def test_limits_left_open_are_the_urdfs_or_refused(robot, capfd, tmp_path, monkeypatch):
    monkeypatch.setattr(robot_description, 'NEEDED', 0.2)
    contract = yaml.safe_load((SHIPPED / 'tabletop.yaml').read_text())
    del contract['limits']['elbow']['position']
    path = tmp_path / 'open.yaml'
    path.write_text(yaml.safe_dump(contract))
    assert not configured(robot, Action, contract=str(path))
    assert 'limits.elbow.position is missing' in capfd.readouterr().err
    assert configured(robot, Action, contract=str(path), robot_description=urdf())


def test_a_workspace_needs_a_urdf(robot, capfd, tmp_path, monkeypatch):
    monkeypatch.setattr(robot_description, 'NEEDED', 0.2)
    box = {'frame': 'gripper', 'x': [-1.0, 1.0], 'y': [-1.0, 1.0], 'z': [0.0, 1.0]}
    contract = yaml.safe_load((SHIPPED / 'tabletop.yaml').read_text()) | {'workspace': box}
    path = tmp_path / 'box.yaml'
    path.write_text(yaml.safe_dump(contract))
    assert not configured(robot, Action, contract=str(path))
    assert 'give the parameter robot_description' in capfd.readouterr().err
    assert configured(robot, Action, contract=str(path), robot_description=urdf())
