"""`predicted_path` is the path of a link during the actions that will be executed."""

from types import SimpleNamespace

import numpy as np
import pytest
from nav_msgs.msg import Path
from std_srvs.srv import Trigger

from embodied_kv.control.kinematics import Kinematics
from embodied_kv.nodes.action import Action
from embodied_kv.nodes.control import robot_description
from embodied_kv.nodes.control.chunk_path import ChunkPath
from embodied_kv.nodes.perception import Perception
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.reading import load

LIMITS = load('tabletop').limits
LINKS = ['base', *(f'link_of_{name}' for name in LIMITS)]


def urdf():
    """Return a serial arm with the joints of `tabletop`; `tip` is fixed before the gripper."""
    joints = ''.join(
        f'<joint name="{name}" type="{"prismatic" if of.role == "gripper" else "revolute"}">'
        f'<parent link="{parent}"/><child link="{child}"/><origin xyz="0 0 0.2"/>'
        f'<axis xyz="{i % 2} {1 - i % 2} 0"/><limit lower="{of.position[0]}" '
        f'upper="{of.position[1]}" velocity="{of.velocity}" effort="1"/></joint>'
        for i, ((name, of), parent, child) in enumerate(
            zip(LIMITS.items(), LINKS, LINKS[1:], strict=False)
        )
    )
    tip = (
        f'<joint name="flange" type="fixed"><parent link="{LINKS[-2]}"/><child link="tip"/>'
        '<origin xyz="0 0 0.1"/></joint>'
    )
    links = ''.join(f'<link name="{name}"/>' for name in (*LINKS, 'tip'))
    return f'<robot name="tabletop">{links}{joints}{tip}</robot>'


ARM = [name for name, of in LIMITS.items() if of.role != 'gripper']


def heard_paths(robot):
    heard = []
    robot.node.create_subscription(Path, 'predicted_path', heard.append, 100)
    return heard


@pytest.mark.parametrize('shadow', [False, True])
def test_path_of_a_chunk_ends_where_the_chunk_ends(robot, shadow):
    heard, kinematics = heard_paths(robot), Kinematics(urdf(), 'tip', ARM)
    robot.up(Perception, Action, tool_frame='tip', robot_description=urdf(), shadow=shadow)
    robot.until(lambda: sum(bool(path.poses) for path in heard) >= 3)
    robot.spin(0.2)  # until their chunks have arrived
    paths = [path for path in heard if path.poses]
    for path in paths:
        chunks = [c for c in robot.chunks if c.header.stamp == path.header.stamp]
        end, names = chunks[0].execution_horizon, chunks[0].joint_names
        assert len(path.poses) in {end - chunk.first for chunk in chunks}
        actions = np.reshape(chunks[0].values, (-1, len(names)))[end - len(path.poses) : end]
        actions = actions[:, [names.index(joint) for joint in ARM]]
        places = [[p.pose.position.x, p.pose.position.y, p.pose.position.z] for p in path.poses]
        np.testing.assert_allclose(places, kinematics.places(actions), atol=1e-9)
        assert {path.header.frame_id, *(p.header.frame_id for p in path.poses)} == {'base'}
    stamps = [(path.header.stamp.sec, path.header.stamp.nanosec) for path in paths]
    assert len(set(stamps)) == len(stamps), 'a chunk was published twice'


def test_a_stop_empties_the_path(robot):
    heard = heard_paths(robot)
    robot.up(Perception, Action, tool_frame='tip', robot_description=urdf())
    robot.until(lambda: heard and heard[-1].poses)
    assert robot.call(Trigger, 'control/stop').success
    robot.until(lambda: not heard[-1].poses)
    assert heard[-1].header.frame_id == 'base'
    heard.clear()
    for _ in range(5):
        robot.show()
        robot.spin(0.1)
    assert heard == []


def test_deactivation_empties_the_path(robot):
    heard = heard_paths(robot)
    _, action = robot.up(Perception, Action, tool_frame='tip', robot_description=urdf())
    robot.until(lambda: heard and heard[-1].poses)
    assert action.trigger_deactivate().name == 'SUCCESS'
    robot.until(lambda: not heard[-1].poses, show=False)


def test_no_path_is_published_without_a_tool_frame(robot):
    robot.up(Action, robot_description=urdf())
    assert robot.node.count_publishers(f'{robot.namespace}/predicted_path') == 0


@pytest.mark.parametrize(
    'parameters, expected',
    [
        ({}, "robot_description must be a URDF where tool_frame is set (got '')"),
        (
            {'robot_description': urdf()},
            'tool_frame must be a link of the URDF (got tool); write one of base, link_of_',
        ),
    ],
)
def test_a_tool_frame_that_is_not_in_the_urdf_fails_configure(
    robot, capfd, monkeypatch, parameters, expected
):
    monkeypatch.setattr(robot_description, 'NEEDED', 0.2)
    node = robot.bring(Action, tool_frame='tool', **parameters)
    assert node.trigger_configure().name != 'SUCCESS'
    assert expected in capfd.readouterr().err


def test_a_link_that_velocities_move_is_refused():
    arm = urdf().replace('shoulder_pan', 'panda_joint1')
    node = SimpleNamespace(embodiment=Embodiment.load('franka'))
    with pytest.raises(ValueError, match=r'commanded by position \(got link_of_panda_joint1, wh'):
        ChunkPath(node, 'link_of_panda_joint1', arm)
