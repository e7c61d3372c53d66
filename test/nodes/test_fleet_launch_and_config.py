"""config/fleet.yaml names parameters that there are; launch/fleet.launch.py what there is."""

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
from embodied_kv.nodes.fleet.client_node import FleetClientParams
from embodied_kv.nodes.fleet.params import FleetMemoryParams, FleetParams
from embodied_kv.nodes.observation.params import ObservationParams
from embodied_kv.nodes.robot_mission import MissionParams
from embodied_kv.nodes.session import SessionParams
from embodied_kv.nodes.voice import LanguageParams
from embodied_kv.planning.config import PlanningConfig
from embodied_kv.planning.robot_folder import MemoryParams
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.serving.scheduling import SchedulingConfig
from embodied_kv.serving.websocket.config import ServedEngineConfig, ServerConfig

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / 'launch' / 'fleet.launch.py'
CONFIG = yaml.safe_load((ROOT / 'config' / 'fleet.yaml').read_text())
PARTS = {
    '/**': [SuiteParams],
    '/**/fleet': [FleetParams],
    '/**/policy_server': [ServerConfig, SchedulingConfig],
    '/**/session': [SessionParams],
    '/**/language': [LanguageParams],
    '/**/memory': [MemoryParams, PlanningConfig, FleetMemoryParams],
    '/**/mission': [MissionParams],
    '/**/action': [ActionParams, ObservationParams, FleetClientParams],
    '/**/sim': [SimParams],
}
needs_launch = pytest.mark.skipif(
    not importlib.util.find_spec('launch_ros'),
    reason='launch_ros is not installed: not among the ROS wheels',
)


@pytest.mark.parametrize('section', PARTS)
def test_the_yaml_names_parameters_that_there_are(section):
    given = dict(CONFIG[section]['ros__parameters'])
    engine = given.pop('engine', {})
    known = {f.name for part in PARTS[section] for f in fields(part)}
    assert set(given) <= known
    EngineConfig(**engine)


def test_the_yaml_holds_every_parameter_of_the_fleet_with_its_default():
    given = dict(CONFIG['/**/fleet']['ros__parameters'])
    del given['engine']
    left = dict.fromkeys(('robots', 'profile', 'trace'), '')  # to the launch and command line
    assert given | left == asdict(FleetParams())
    assert not left.keys() & given.keys()
    served = dict(CONFIG['/**/policy_server']['ros__parameters'])
    assert ServedEngineConfig(**served.pop('engine')) == ServedEngineConfig()
    assert served == asdict(ServerConfig()) | asdict(SchedulingConfig())
    assert asdict(FleetClientParams()).items() <= CONFIG['/**/action']['ros__parameters'].items()


def test_rows_are_enough_for_the_streams_of_the_robots_that_it_is_sized_for():
    engine = EngineConfig(**CONFIG['/**/fleet']['ros__parameters']['engine'])
    robots = engine.reserved_rows - engine.robots
    assert robots == 32 and engine.streams == 2 * robots
    assert engine.rows == engine.robots + robots + engine.streams
    assert CONFIG['/**/memory']['ros__parameters']['planner_rows'] == robots


def test_it_takes_the_memory_that_it_says():
    def mib(rows, tokens, b):
        return rows * tokens * 2 * b.layers * b.kv_heads * b.head_dim * 4 / 2**20  # float32

    given = {section: CONFIG[section]['ros__parameters'] for section in PARTS}
    engine, memory = EngineConfig(**given['/**/fleet']['engine']), given['/**/memory']
    model = preset(given['/**']['preset'])
    planner = load_planner(bundled_planner(Embodiment.load('tabletop').contract.language.planner))
    rows = mib(engine.rows, model.prefix_tokens, model.backbone)
    streams = mib(engine.streams, engine.decode_tokens, model.backbone)
    c = planner.model.config
    plans = mib(memory['planner_rows'], c.max_tokens, c.backbone)
    loaded = memory['planner_rows'] * memory['cache_mib']
    said = (
        f'{rows:.0f} MiB of rows, {streams:.0f} MiB of streams, {plans:.0f} MiB of planner rows, '
        f"up to {loaded} MiB of loaded memory's KV: {rows + streams + plans + loaded:.0f} MiB"
    )
    assert said in (ROOT / 'config' / 'fleet.yaml').read_text(), said


@needs_launch
@pytest.mark.parametrize(
    'robots, names', [('2', ['robot_1', 'robot_2']), ('left, /right/arm', ['left', 'right/arm'])]
)
def test_robots_are_a_number_or_names(robots, names):
    assert runpy.run_path(str(LAUNCH))['names'](robots) == names


@needs_launch
@pytest.mark.parametrize('sim, clients, started', [('true', 'true', 5), ('false', 'false', 1)])
def test_it_starts_one_engine_and_what_is_asked_for_of_each_robot(sim, clients, started):
    from launch.actions import DeclareLaunchArgument

    from launch import LaunchContext

    module = runpy.run_path(str(LAUNCH))
    context = LaunchContext()
    for entity in module['generate_launch_description']().entities:
        if isinstance(entity, DeclareLaunchArgument):
            entity.execute(context)
    context.launch_configurations.update(robots='2', sim=sim, clients=clients)
    assert len(module['nodes'](context)) == started
