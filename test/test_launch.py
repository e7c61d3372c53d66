"""The launch files compile, start executables that exist, and report failures of the suite."""

import ast
import importlib.util
import os
import py_compile
import re
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROBOT, FLEET = FILES = [ROOT / 'launch' / f'{name}.launch.py' for name in ('robot', 'fleet')]
COMMON = {'params_file', 'sim', 'preset', 'checkpoint', 'autostart', 'respawn', 'log_level'}
ARGUMENTS = {
    ROBOT: COMMON | {'namespace', 'engine', 'server', 'contract', 'use_sim_time'},
    FLEET: COMMON | {'robots', 'clients', 'port'},
}
STARTED = {
    ROBOT: {'robot', 'remote_robot', 'command_watchdog', 'sim'},
    FLEET: {'policy_server', 'remote_robot', 'command_watchdog', 'sim'},
}
needs_launch = pytest.mark.skipif(
    not importlib.util.find_spec('launch_ros'),
    reason='launch_ros is not installed: not among the ROS wheels',
)
both = pytest.mark.parametrize('file', FILES, ids=lambda file: file.name)


@both
def test_launch_file_compiles(file, tmp_path):
    py_compile.compile(str(file), cfile=str(tmp_path / 'launch.pyc'), doraise=True)


@both
def test_every_executable_that_it_starts_exists(file):
    text = file.read_text()
    named = set(re.findall(r"executable='(\w+)'", text)) | set(re.findall(r"else '(\w+)'", text))
    setup = ast.parse((ROOT / 'setup.py').read_text())
    assigned = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in setup.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], 'id', '') == 'EXECUTABLES'
    }
    assert named == STARTED[file]
    assert named <= set(assigned['EXECUTABLES'])


def test_parameters_of_the_launch_file_are_declared():
    from dataclasses import fields

    from embodied_kv.nodes.common.parameters import SuiteParams

    names = {f.name for f in fields(SuiteParams)}
    assert {'contract', 'preset', 'checkpoint', 'autostart'} <= names


@both
def test_launch_arguments_have_a_description(file):
    tree = ast.parse(file.read_text())
    table = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == 'ARGUMENTS'
    )
    assert {key.value for key in table.keys} == ARGUMENTS[file]


def started(file=ROBOT, **given):
    """Return the executables that a launch file starts with these arguments."""
    from launch.actions import DeclareLaunchArgument
    from launch_ros.actions import Node

    from launch import LaunchContext

    module = runpy.run_path(str(file))
    description = module['generate_launch_description']()
    context = LaunchContext()
    for entity in description.entities:
        if isinstance(entity, DeclareLaunchArgument):
            entity.execute(context)
    context.launch_configurations.update(given)
    nodes = [one for one in module['nodes'](context) if isinstance(one, Node)]
    return [node.node_executable for node in nodes]


@needs_launch
@pytest.mark.parametrize('sim', ['true', 'false'])
def test_launch_starts_the_robot_its_watchdog_and_on_request_the_simulation(sim):
    assert started(sim=sim) == ['robot', 'command_watchdog'] + ['sim'] * (sim == 'true')


@needs_launch
@pytest.mark.parametrize('clients', ['true', 'false'])
def test_a_fleet_starts_a_watchdog_for_each_robot_that_it_starts(clients):
    robots = ['remote_robot', 'command_watchdog'] * 3 if clients == 'true' else []
    assert started(FLEET, robots='3', clients=clients) == ['policy_server', *robots]


@needs_launch
@pytest.mark.parametrize(
    'engine, lost', [('own', {'server': 'ws://h:1'}), ('remote', {'checkpoint': 'random'})]
)
def test_an_argument_that_its_engine_does_not_use_is_refused(engine, lost):
    with pytest.raises(ValueError, match=f'engine is {engine} and {next(iter(lost))} is given'):
        started(engine=engine, **lost)
    (other,) = {'own', 'remote'} - {engine}
    assert len(started(engine=other, **lost)) == 2


LAUNCHED = """
import runpy, sys
from launch import LaunchDescription, LaunchService
from launch.actions import SetLaunchConfiguration
given = dict(word.split(':=') for word in sys.argv[2:])
description = runpy.run_path(sys.argv[1])['generate_launch_description']()
chosen = [SetLaunchConfiguration(*pair) for pair in given.items()]
service = LaunchService()
service.include_launch_description(LaunchDescription([*chosen, *description.entities]))
sys.exit(service.run())
"""


def launched(tmp_path, file, *given):
    """Start a launch as a process; return it and the file with its output."""
    log = tmp_path / 'launch.log'
    environment = {
        **os.environ,
        'ROS_DOMAIN_ID': str(1 + os.getpid() % 100),
        'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST',
        'ROS_LOG_DIR': str(tmp_path),
        'OMP_NUM_THREADS': '1',
    }
    with log.open('w') as output:
        line = [sys.executable, '-c', LAUNCHED, str(file), *given]
        return subprocess.Popen(line, stdout=output, stderr=output, env=environment), log


@needs_launch
@pytest.mark.slow
@both
def test_a_suite_that_cannot_be_configured_makes_the_exit_status_1(tmp_path, file):
    given = ['contract:=nowhere'] if file == ROBOT else ['robots:=1', 'checkpoint:=/no/such/file']
    process, log = launched(tmp_path, file, *given)
    assert process.wait(120) == 1, log.read_text()
    assert 'ended with' in log.read_text()


@needs_launch
@pytest.mark.slow
def test_a_suite_that_is_interrupted_makes_the_exit_status_0(tmp_path):
    given = 'engine:=remote', 'server:=ws://127.0.0.1:1', 'contract:=franka'
    process, log = launched(tmp_path, ROBOT, *given)
    deadline = time.monotonic() + 120
    while 'forwards velocity' not in log.read_text() and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(3.0)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 0, log.read_text()
