"""config/fleet.yaml names parameters that exist; launch/fleet.launch.py starts one server."""

import importlib.util
import runpy
from dataclasses import asdict, fields
from pathlib import Path

import pytest
import yaml

from embodied_kv.config import preset
from embodied_kv.demo.nodes.node import SimParams
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.planner_checkpoint import bundled_planner, load_planner
from embodied_kv.nodes.action import ActionParams
from embodied_kv.nodes.common.parameters import SuiteParams
from embodied_kv.nodes.language import LanguageParams
from embodied_kv.nodes.mission import MissionParams
from embodied_kv.nodes.remote.server_link import RemoteParams
from embodied_kv.nodes.session import SessionParams
from embodied_kv.planning.config import MemoryParams, PlanningConfig
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.serving.memories import MemoryConfig
from embodied_kv.serving.ray_engine import CloudConfig
from embodied_kv.serving.scheduling import SchedulingConfig
from embodied_kv.serving.websocket.config import ServedEngineConfig, ServerConfig

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / 'launch' / 'fleet.launch.py'
CONFIG = {
    section: given['ros__parameters']
    for section, given in yaml.safe_load((ROOT / 'config' / 'fleet.yaml').read_text()).items()
}
PARTS = {
    '/**': [SuiteParams],
    '/**/policy_server': [ServerConfig, SchedulingConfig, CloudConfig],
    '/**/session': [SessionParams],
    '/**/language': [LanguageParams],
    '/**/mission': [MissionParams],
    '/**/action': [ActionParams],
    '/**/sim': [SimParams],
}
NESTED = {
    'engine': [ServedEngineConfig],
    'memory': [MemoryConfig, MemoryParams, PlanningConfig],
    'server': [RemoteParams],
}
SERVED = CONFIG['/**/policy_server']
CONNECTIONS = 4  # per robot: action, language, its prompts, memory
needs_launch = pytest.mark.skipif(
    not importlib.util.find_spec('launch_ros'),
    reason='launch_ros is not installed: not among the ROS wheels',
)


def names(parts):
    return {f.name for part in parts for f in fields(part)}


def test_every_section_is_known():
    assert CONFIG.keys() == PARTS.keys()


@pytest.mark.parametrize('section', PARTS)
def test_the_yaml_names_parameters_that_exist(section):
    given = dict(CONFIG[section])
    for prefix in NESTED.keys() & given.keys():
        assert set(given.pop(prefix)) <= names(NESTED[prefix])
    assert set(given) <= names(PARTS[section])


def test_the_yaml_holds_every_parameter_of_the_server_but_a_few_with_its_default():
    given = {name: value for name, value in SERVED.items() if name not in NESTED}
    defaults = {k: v for part in PARTS['/**/policy_server'] for k, v in asdict(part()).items()}
    other = {'scheduler': 'kairos', 'max_connections': 160, 'max_connections_per_key': 160}
    assert given == defaults | other
    ServerConfig(**{f.name: given[f.name] for f in fields(ServerConfig)})
    assert given['max_connections'] >= CONNECTIONS * SERVED['memory']['planner_rows']
    own = {'request_ahead': 1, 'rtc': True}
    assert CONFIG['/**']['server'] == asdict(RemoteParams()) | own


def test_the_robots_settings_are_those_of_a_robot_with_an_engine():
    robot = yaml.safe_load((ROOT / 'config' / 'robot.yaml').read_text())['/**']['ros__parameters']
    for name in ('euler_steps', 'min_euler_steps', 'rtc'):
        assert SERVED['engine'][name] == robot['engine'][name]


def test_rows_are_enough_for_the_streams_of_the_robots_that_it_is_sized_for():
    engine = EngineConfig(**SERVED['engine'])
    robots = engine.reserved_rows - engine.max_batch_robots
    assert robots == 32 and engine.streams == 2 * robots
    assert engine.rows == engine.max_batch_robots + robots + engine.streams
    assert SERVED['memory']['planner_rows'] == robots


def test_a_robot_requests_before_the_end_of_its_shortest_execution():
    horizon = int(CONFIG['/**/action']['execution_horizon'].removeprefix('static:'))
    assert CONFIG['/**']['server']['request_ahead'] < horizon


def test_it_takes_the_memory_that_it_states():
    def mib(rows, tokens, b):
        return rows * tokens * 2 * b.layers * b.kv_heads * b.head_dim * 4 / 2**20  # float32

    engine, memory = EngineConfig(**SERVED['engine']), SERVED['memory']
    model = preset(CONFIG['/**']['preset'])
    planner = load_planner(bundled_planner(Embodiment.load('tabletop').contract.language.planner))
    rows = mib(engine.rows, model.prefix_tokens, model.backbone)
    streams = mib(engine.streams, engine.decode_tokens, model.backbone)
    c = planner.model.config
    plans = mib(memory['planner_rows'], c.max_tokens, c.backbone)
    loaded = memory['planner_rows'] * memory['host_cache_mib']
    said = (
        f'{rows:.0f} MiB of rows, {streams:.0f} MiB of streams,\n# {plans:.0f} MiB of planner '
        f"rows, up to {loaded} MiB of loaded memory's KV: "
        f'{rows + streams + plans + loaded:.0f} MiB'
    )
    assert said in (ROOT / 'config' / 'fleet.yaml').read_text(), said


@needs_launch
@pytest.mark.parametrize(
    'robots, names', [('2', ['robot_1', 'robot_2']), ('left, /right/arm', ['left', 'right/arm'])]
)
def test_robots_are_a_number_or_names(robots, names):
    assert runpy.run_path(str(LAUNCH))['names'](robots) == names


def started(**given):
    """Return the nodes that the launch file starts with these arguments."""
    from launch.actions import DeclareLaunchArgument
    from launch_ros.actions import Node

    from launch import LaunchContext

    module = runpy.run_path(str(LAUNCH))
    context = LaunchContext()
    for entity in module['generate_launch_description']().entities:
        if isinstance(entity, DeclareLaunchArgument):
            entity.execute(context)
    context.launch_configurations.update(given)
    return [node for node in module['nodes'](context) if isinstance(node, Node)]


@needs_launch
@pytest.mark.parametrize(
    ('sim', 'clients', 'executables'),
    [
        ('true', 'true', ['remote_robot', 'command_watchdog', 'sim']),
        ('false', 'true', ['remote_robot', 'command_watchdog']),
        ('false', 'false', []),
    ],
)
def test_it_starts_one_server_and_what_is_requested_of_each_robot(sim, clients, executables):
    found = [node.node_executable for node in started(robots='2', sim=sim, clients=clients)]
    assert found == ['policy_server', *executables * 2]


@needs_launch
def test_the_port_is_given_to_the_server_and_to_the_robots():
    from launch import LaunchContext

    server, robot, _ = started(robots='1', port='8123')
    context = LaunchContext()
    words = server._Node__arguments
    assert words.index('policy_server:port:=8123') > words.index('--params-file')
    (value,) = robot._Node__parameters[1].values()
    assert value.evaluate(context) == 'ws://127.0.0.1:8123'
