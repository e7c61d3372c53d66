"""A parameter under its former name fails configure; the error states its present name."""

import re
from dataclasses import fields
from types import SimpleNamespace

import pytest
import yaml

from embodied_kv.config import TINY
from embodied_kv.engine_config import EngineConfig
from embodied_kv.nodes.action import Action, ActionParams
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.common.parameters import Parameters, SuiteParams
from embodied_kv.nodes.language import Language, LanguageParams
from embodied_kv.nodes.memory import BranchParams, Memory, MemoryParams
from embodied_kv.nodes.mission import Mission, MissionParams
from embodied_kv.nodes.observation.inputs import ObservationParams
from embodied_kv.nodes.perception import Perception
from embodied_kv.nodes.policy_server import PolicyServerNode
from embodied_kv.nodes.recorder import Recorder, RecorderParams
from embodied_kv.nodes.remote.language import RemoteLanguage
from embodied_kv.nodes.remote.server_link import RemoteParams
from embodied_kv.nodes.session import Session, SessionParams
from embodied_kv.planning.config import PlanningConfig
from embodied_kv.serving.ray_engine import CloudConfig
from embodied_kv.serving.scheduling import SchedulingConfig
from embodied_kv.serving.websocket.config import ServedEngineConfig, ServerConfig

PARTS = (
    (Perception, '', SuiteParams),
    (Perception, 'engine.', EngineConfig),
    (Perception, '', ObservationParams),
    (Action, '', ActionParams),
    (Language, '', LanguageParams),
    (Session, '', SessionParams),
    (Memory, '', MemoryParams),
    (Memory, '', PlanningConfig),
    (Memory, '', BranchParams),
    (Mission, '', MissionParams),
    (Recorder, '', RecorderParams),
    (RemoteLanguage, 'server.', RemoteParams),
    (PolicyServerNode, '', ServerConfig),
    (PolicyServerNode, '', SchedulingConfig),
    (PolicyServerNode, '', CloudConfig),
    (PolicyServerNode, 'engine.', ServedEngineConfig),
    (PolicyServerNode, 'memory.', MemoryParams),
    (PolicyServerNode, 'memory.', PlanningConfig),
)
RENAMED = [
    (kind, part, prefix + old, prefix + f.name, f.default)
    for kind, prefix, part in PARTS
    for f in fields(part)
    for old in f.metadata.get('old', ())
]
ONE_OF_EACH_PART = list(
    {(kind, part): case for case in RENAMED for kind, part, *_ in [case]}.values()
)


class StandInNode:
    """The methods of a node that `Parameters` calls. given: parameters by name."""

    def __init__(self, **given):
        self._parameter_overrides = given

    def declare_parameter(self, name, default, descriptor):
        """Accept the declaration."""

    def add_on_set_parameters_callback(self, callback):
        """Accept the callback."""


@pytest.fixture
def no_engine(monkeypatch):
    """Replace the engine, because parameters are read before any engine is used."""
    host = SimpleNamespace(model=TINY, engine=None)
    monkeypatch.setattr(EngineHost, 'share', lambda *_: host)


def by_argument(name, value, _):
    return ['-p', f'{name}:={yaml.safe_dump(value, default_flow_style=True).splitlines()[0]}']


def by_file(name, value, folder):
    path = folder / 'former.yaml'
    path.write_text(yaml.safe_dump({'/**': {'ros__parameters': {name: value}}}))
    return ['--params-file', str(path)]


@pytest.mark.parametrize(
    'kind, part, old, new, default',
    RENAMED,
    ids=[f'{case[0].__name__}.{case[2]}' for case in RENAMED],
)
def test_former_name_is_refused_with_the_present_one(kind, part, old, new, default):
    prefix = new.removesuffix(new.split('.')[-1])
    params = Parameters(StandInNode(**{old: default}), [(prefix, part)], lambda: False)
    with pytest.raises(ValueError, match=f'^parameter {re.escape(old)} was renamed; use {new}$'):
        params.check()


@pytest.mark.parametrize('given', [by_argument, by_file])
@pytest.mark.parametrize(
    'kind, part, old, new, default',
    ONE_OF_EACH_PART,
    ids=[f'{kind.__name__}.{part.__name__}' for kind, part, *_ in ONE_OF_EACH_PART],
)
def test_configure_fails_with_the_present_name(
    ros, no_engine, capfd, tmp_path, given, kind, part, old, new, default
):
    default = list(default) if isinstance(default, tuple) else default
    suite = ['-p', 'contract:=tabletop', '-p', 'preset:=tiny', '-p', 'checkpoint:=random']
    node = kind(cli_args=['--ros-args', *suite, *given(old, default, tmp_path)])
    assert node.trigger_configure().name == 'FAILURE'
    assert f'configure failed: parameter {old} was renamed; use {new}' in capfd.readouterr().err
    node.end()


@pytest.mark.parametrize('kind', [Perception, Action, Language, Session, Memory, Mission])
def test_all_parameters_of_a_node_are_looked_at(ros, kind):
    node = kind()
    assert {part for _, part in node.params._parts} <= {part for *_, part in PARTS}
    node.end()


def test_all_former_names_are_reported_at_once(ros, capfd):
    given = ['engine.flat_rows:=2', 'tick_commands:=true', 'horizon:=whole']
    node = Action(cli_args=['--ros-args', *(word for p in given for word in ('-p', p))])
    assert node.trigger_configure().name == 'FAILURE'
    reported = capfd.readouterr().err
    for now in ('engine.compressed_rows', 'execution_horizon'):
        assert f'was renamed; use {now}' in reported
    assert 'parameter tick_commands was removed; use contract' in reported
    node.end()


def test_all_removed_names_are_refused_with_a_remedy(ros, capfd):
    given = ['contract:=tabletop', 'restart:=0.2', 'load_policy:=balanced']
    node = Memory(cli_args=['--ros-args', *(word for p in given for word in ('-p', p))])
    assert node.trigger_configure().name == 'FAILURE'
    said = capfd.readouterr().err
    for name in ('restart', 'load_policy'):
        assert f'parameter {name} was removed; delete it' in said
    node.end()
