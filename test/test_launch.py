"""The launch file: it compiles everywhere, starts what exists, and runs in a full ROS."""

import ast
import importlib.util
import py_compile
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAUNCH = ROOT / 'launch' / 'robot.launch.py'
ARGUMENTS = {
    'namespace',
    'params_file',
    'engine',
    'server',
    'sim',
    'preset',
    'checkpoint',
    'use_sim_time',
    'autostart',
    'log_level',
}
needs_launch = pytest.mark.skipif(
    not importlib.util.find_spec('launch_ros'),
    reason='launch_ros is not installed: not among the ROS wheels',
)


def test_it_compiles(tmp_path):
    py_compile.compile(str(LAUNCH), cfile=str(tmp_path / 'launch.pyc'), doraise=True)


def test_every_executable_that_it_starts_exists():
    named = set(re.findall(r"executable='(\w+)'", LAUNCH.read_text()))
    setup = ast.parse((ROOT / 'setup.py').read_text())
    assigned = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in setup.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], 'id', '') == 'EXECUTABLES'
    }
    named |= set(re.findall(r"else '(\w+)'", LAUNCH.read_text()))
    assert named == {'robot', 'remote_robot', 'sim'}
    assert named <= set(assigned['EXECUTABLES'])


def test_its_parameters_are_declared():
    from dataclasses import fields

    from embodied_kv.nodes.common.parameters import SuiteParams

    assert {'preset', 'checkpoint', 'autostart'} <= {f.name for f in fields(SuiteParams)}


def test_it_declares_its_arguments_with_words():
    tree = ast.parse(LAUNCH.read_text())
    table = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == 'ARGUMENTS'
    )
    assert {key.value for key in table.keys} == ARGUMENTS


def started(**given):
    """What the launch file starts where these arguments are given."""
    from launch.actions import DeclareLaunchArgument

    from launch import LaunchContext

    module = runpy.run_path(str(LAUNCH))
    description = module['generate_launch_description']()
    context = LaunchContext()
    for entity in description.entities:
        if isinstance(entity, DeclareLaunchArgument):
            entity.execute(context)
    context.launch_configurations.update(given)
    return module['nodes'](context)


@needs_launch
@pytest.mark.parametrize('sim, nodes', [('true', 2), ('false', 1)])
def test_it_starts_the_robot_and_the_simulation_if_asked(sim, nodes):
    assert len(started(sim=sim)) == nodes


@needs_launch
@pytest.mark.parametrize(
    'engine, lost', [('own', {'server': 'ws://h:1'}), ('remote', {'checkpoint': 'random'})]
)
def test_an_argument_that_its_engine_does_not_use_is_refused(engine, lost):
    with pytest.raises(ValueError, match=f'engine is {engine} and {next(iter(lost))} is given'):
        started(engine=engine, **lost)
    (other,) = {'own', 'remote'} - {engine}
    assert len(started(engine=other, **lost)) == 1
