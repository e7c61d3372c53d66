"""`tools/renames.json` maps old names to existing ones, and the old modules are gone."""

import importlib.util
import json
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

from embodied_kv.engine_config import EngineConfig
from embodied_kv.nodes.action import ActionParams
from embodied_kv.nodes.common.parameters import SuiteParams
from embodied_kv.nodes.language import LanguageParams
from embodied_kv.nodes.mission import MissionParams
from embodied_kv.nodes.observation.inputs import ObservationParams
from embodied_kv.nodes.recorder import RecorderParams
from embodied_kv.nodes.remote.server_link import RemoteParams
from embodied_kv.nodes.session import SessionParams
from embodied_kv.planning.config import MemoryParams, PlanningConfig
from embodied_kv.serving.ray_engine import CloudConfig
from embodied_kv.serving.scheduling import SchedulingConfig
from embodied_kv.serving.websocket.config import ServerConfig

RENAMES = json.loads((Path(__file__).resolve().parent.parent / 'tools/renames.json').read_text())


def exists(module):
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return False
    return found is not None and found.origin is not None  # None: a folder without a module


@pytest.mark.parametrize('old, new', RENAMES['modules'].items())
def test_moved_module_exists_under_its_new_name(old, new):
    assert exists(new)
    assert not exists(old) or new.startswith(f'{old}.'), 'it became a package'


@pytest.mark.parametrize('new', RENAMES['names'].values())
def test_a_renamed_name_exists(new):
    parts = new.split('.')
    depth = next(n for n in range(len(parts), 0, -1) if exists('.'.join(parts[:n])))
    found = import_module('.'.join(parts[:depth]))
    for part in parts[depth:]:
        found = getattr(found, part)
    assert found is not None


PARTS = {  # by node, or by the parameter prefix of several nodes; *: all nodes
    '*': (SuiteParams,),
    'engine': (EngineConfig,),
    'perception': (ObservationParams,),
    'action': (ActionParams,),
    'language': (LanguageParams,),
    'session': (SessionParams,),
    'memory': (MemoryParams, PlanningConfig),
    'mission': (MissionParams,),
    'recorder': (RecorderParams,),
    'server': (RemoteParams,),
    'policy_server': (ServerConfig, SchedulingConfig, CloudConfig),
}


def test_former_parameter_names_are_those_that_nodes_refuse():
    refused = {
        f'{node}.{old}': f'{node}.{f.name}'
        for node, parts in PARTS.items()
        for part in parts
        for f in fields(part)
        for old in f.metadata.get('old', ())
    }
    assert {old: new for old, new in RENAMES['parameters'].items() if new} == refused


def test_removed_and_former_parameter_names_are_not_parameters():
    for old in RENAMES['parameters']:
        node, name = old.split('.')
        assert name not in {f.name for part in PARTS[node] for f in fields(part)}


def test_renamed_fields_of_messages_exist_and_the_old_ones_are_gone():
    root = Path(__file__).resolve().parent.parent
    for old, new in RENAMES['fields'].items():
        pattern, _, name = old.partition('.')
        name = name.rpartition('.')[2]
        files = list(root.glob(f'{pattern}.*'))
        assert files, pattern
        for path in files:
            names = {line.split()[1] for line in path.read_text().splitlines() if '  #' in line}
            assert new in names and name not in names, path
