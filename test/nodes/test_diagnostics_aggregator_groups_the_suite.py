"""The analyzers of config/diagnostics_aggregator.yaml match each node of the suite once."""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest
import yaml
from diagnostic_msgs.msg import DiagnosticArray

from embodied_kv import nodes
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.perception import Perception
from embodied_kv.nodes.remote.action import RemoteAction

FILE = Path(__file__).parents[2] / 'config' / 'diagnostics_aggregator.yaml'
(GROUP,) = (
    value for value in yaml.safe_load(FILE.read_text())['analyzers']['ros__parameters'].values()
)
ANALYZERS = GROUP['analyzers']
NAMED = re.compile(r"super\(\).__init__\(\s*'(\w+)'")


def subclasses(kind):
    for other in kind.__subclasses__():
        yield from (other, *subclasses(other))


def node_names():
    """Yield the name that each node class of the suite passes to its base class."""
    for module in pkgutil.walk_packages(nodes.__path__, 'embodied_kv.nodes.'):
        if not module.name.endswith('__main__'):
            importlib.import_module(module.name)
    for kind in subclasses(SuiteNode):
        if kind.__module__.startswith('embodied_kv.nodes.'):
            inits = (vars(base).get('__init__') for base in kind.__mro__[:-1])
            sources = (inspect.getsource(init) for init in inits if inspect.isfunction(init))
            yield from [found[1] for found in map(NAMED.search, sources) if found][:1]


def matching(name):
    return [
        key
        for key, analyzer in ANALYZERS.items()
        if any(re.fullmatch(pattern, name) for pattern in analyzer['regex'])
    ]


@pytest.mark.parametrize('namespace', ['', 'left/', 'lab/left/'])
def test_each_node_of_the_suite_is_in_one_group(namespace):
    names = {namespace + name for name in node_names()}
    assert len(names) > 1
    assert {name: len(matching(name)) for name in names} == dict.fromkeys(names, 1)


@pytest.mark.parametrize('name', ['transaction', 'action: joint 1', 'left/action_server', 'sim'])
def test_nodes_of_other_packages_are_in_no_group(name):
    assert matching(name) == []


def test_parameters_have_the_types_that_the_aggregator_demands():
    assert GROUP['type'] == 'diagnostic_aggregator/AnalyzerGroup'
    for analyzer in ANALYZERS.values():
        assert analyzer['type'] == 'diagnostic_aggregator/GenericAnalyzer'
        assert type(analyzer['timeout']) is float and type(analyzer['regex']) is list
        assert type(analyzer.get('num_items', 0)) is int


@pytest.mark.parametrize(
    'kind, group, namespace, hardware',
    [
        (RemoteAction, 'control', '/', 'tabletop'),
        (RemoteAction, 'control', '/lab/left', 'tabletop/lab/left'),
        (Perception, 'perception', '/left', 'tabletop/left'),
    ],
)
def test_the_hardware_id_names_the_robot(robots, kind, group, namespace, hardware):
    robot, heard = robots(namespace), []
    robot.node.create_subscription(DiagnosticArray, '/diagnostics', heard.append, 10)
    node = robot.up(kind)
    robot.until(lambda: heard and heard[-1].status[0].hardware_id)
    (status,) = heard[-1].status
    assert status.hardware_id == hardware and matching(status.name) == [group]
    values = {value.key: value.value for value in status.values}
    process = node.host.engine.kv.frames.process_id[:8] if node.on_engine else None
    assert values.get('process') == process
