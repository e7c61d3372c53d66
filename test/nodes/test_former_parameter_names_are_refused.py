"""A parameter under its former name fails configure, with the name that it has now."""

from dataclasses import fields
from types import SimpleNamespace

import pytest
import yaml

from embodied_kv.config import TINY
from embodied_kv.engine_config import EngineConfig
from embodied_kv.nodes.action import Action, ActionParams
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.common.parameters import SuiteParams
from embodied_kv.nodes.language import Language, LanguageParams
from embodied_kv.nodes.memory import Memory, MemoryParams
from embodied_kv.nodes.observation.inputs import ObservationParams
from embodied_kv.nodes.perception import Perception
from embodied_kv.nodes.session import Session, SessionParams
from embodied_kv.planning.config import PlanningConfig

PARTS = (
    (Perception, '', SuiteParams),
    (Perception, 'engine.', EngineConfig),
    (Perception, '', ObservationParams),
    (Action, '', ActionParams),
    (Language, '', LanguageParams),
    (Session, '', SessionParams),
    (Memory, '', MemoryParams),
    (Memory, '', PlanningConfig),
)
RENAMED = [
    (kind, prefix, f) for kind, prefix, part in PARTS for f in fields(part) if 'old' in f.metadata
]


@pytest.fixture(autouse=True)
def no_engine(monkeypatch):
    """Parameters are read before any engine is used."""
    host = SimpleNamespace(model=TINY, engine=None)
    monkeypatch.setattr(EngineHost, 'share', lambda *_: host)


def by_argument(name, value, _):
    return ['-p', f'{name}:={yaml.safe_dump(value, default_flow_style=True).splitlines()[0]}']


def by_file(name, value, folder):
    path = folder / 'former.yaml'
    path.write_text(yaml.safe_dump({'/**': {'ros__parameters': {name: value}}}))
    return ['--params-file', str(path)]


@pytest.mark.parametrize('given', [by_argument, by_file])
@pytest.mark.parametrize(
    'kind, prefix, f', RENAMED, ids=[f'{kind.__name__}.{f.name}' for kind, _, f in RENAMED]
)
def test_configure_fails_with_the_present_name(ros, capfd, tmp_path, given, kind, prefix, f):
    old, new = prefix + f.metadata['old'], prefix + f.name
    default = list(f.default) if isinstance(f.default, tuple) else f.default
    suite = ['-p', 'contract:=tabletop', '-p', 'preset:=tiny', '-p', 'checkpoint:=random']
    node = kind(cli_args=['--ros-args', *suite, *given(old, default, tmp_path)])
    assert node.trigger_configure().name == 'FAILURE'
    assert f'configure failed: parameter {old} was renamed; use {new}' in capfd.readouterr().err
    node.end()


@pytest.mark.parametrize('kind', dict.fromkeys(kind for kind, *_ in PARTS))
def test_all_parameters_of_a_node_are_looked_at(ros, kind):
    node = kind()
    assert {part for _, part in node.params._parts} <= {part for *_, part in PARTS}
    node.end()


def test_all_former_names_are_said_at_once(ros, capfd):
    given = ['engine.flat_rows:=2', 'tick_commands:=true', 'horizon:=whole']
    node = Action(cli_args=['--ros-args', *(word for p in given for word in ('-p', p))])
    assert node.trigger_configure().name == 'FAILURE'
    said = capfd.readouterr().err
    for now in ('engine.compressed_rows', 'execution_horizon'):
        assert f'was renamed; use {now}' in said
    assert 'parameter tick_commands was removed; use contract' in said
    node.end()


def test_all_removed_names_are_refused_with_a_remedy(ros, capfd):
    given = ['contract:=tabletop', 'restart:=0.2', 'load_policy:=balanced']
    node = Memory(cli_args=['--ros-args', *(word for p in given for word in ('-p', p))])
    assert node.trigger_configure().name == 'FAILURE'
    said = capfd.readouterr().err
    for name in ('restart', 'load_policy'):
        assert f'parameter {name} was removed; delete it' in said
    node.end()
