"""Each package of the suite imports only the packages that it may, by its syntax trees."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / 'embodied_kv'
ROS = re.compile(
    r'(rclpy|cv_bridge|launch|launch_ros|\w+_(msgs|interfaces)|std_srvs)(\.|$)'
    r'|embodied_kv\.(msg|srv|action)(\.|$)'
)

BASE = set('types config engine_config errors storage text throttle progress parameter'.split())
MECHANISM = {*BASE, 'runtime', 'kernels'}
KV = {*MECHANISM, 'kv'}
SIBLINGS = {'model', 'compress', 'memory', 'capsule'}
ENGINE = {*KV, *SIBLINGS, 'engine'}
COMPOSED = {'session', 'planning', 'serving'}
ROOMS = {*ENGINE, *COMPOSED, 'robots', 'contracts', 'control', 'fleet', 'data'}

# package: the other packages that it may import
MAY_IMPORT = {
    '__init__': set(),
    'types': set(),
    'config': set(),
    'engine_config': {'config', 'parameter'},
    'errors': set(),
    'storage': {'errors'},
    'text': set(),
    'throttle': set(),
    'progress': set(),
    'parameter': set(),
    'runtime': BASE,
    'kernels': BASE,
    'kv': MECHANISM,
    'robots': BASE,
    **dict.fromkeys(SIBLINGS, KV),
    'model': KV | {'robots'},
    'engine': KV | SIBLINGS,
    'session': ENGINE,
    'planning': ENGINE,
    'contracts': BASE | {'robots'},
    'control': BASE | {'robots'},
    'data': BASE | {'robots'},
    'fleet': BASE | {'control'},
    'serving': ENGINE | {'robots', 'session', 'control', 'fleet', 'planning'},
    'nodes': ROOMS,
    'demo': ROOMS | {'nodes'},
    '__main__': {'demo'},  # no other package
}
NUMPY_ONLY = {'robots', 'contracts', 'control', 'fleet', 'data'}
WITH_ROS = {'nodes', 'demo'}
DEMO_ONLY = {'mujoco', 'matplotlib'}
NOT_INSTALLED = {'benchmarks', 'training', 'examples', 'test'}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix('').parts
    return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob('*.py'))}


def imports(module: str) -> Iterator[str]:
    """Yield the full names of the modules that a module imports, also inside functions."""
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f'{module}: write imports in full'
            for alias in node.names:
                name = f'{node.module}.{alias.name}'
                whole = name in MODULES or node.module == SOURCE.name
                yield name if whole else node.module


def room(module: str) -> str:
    return (module.split('.') + ['__init__'])[1]


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return a path that ends where it began, or an empty list."""
    finished = set()

    def walk(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node not in finished:
            for neighbour in sorted(graph.get(node, ())):
                if found := walk(neighbour, [*path, node]):
                    return found
            finished.add(node)
        return []

    return next((found for node in graph if (found := walk(node, []))), [])


@pytest.mark.parametrize('module', MODULES)
def test_package_imports_only_the_packages_below_it(module):
    here = room(module)
    assert here in MAY_IMPORT, f'{here} is no room of the house'
    allowed = MAY_IMPORT[here] | {here, '__init__'}
    for name in imports(module):
        top = name.split('.')[0]
        assert top not in NOT_INSTALLED, f'{module} may not import {name}'
        if top == 'embodied_kv' and not ROS.match(name):
            assert room(name) in allowed, f'{module} may not import {name}'


@pytest.mark.parametrize('module', [name for name in MODULES if room(name) != 'demo'])
def test_only_the_demo_simulates_or_draws(module):
    assert {name.split('.')[0] for name in imports(module)}.isdisjoint(DEMO_ONLY)


@pytest.mark.parametrize('module', [name for name in MODULES if room(name) not in WITH_ROS])
def test_ros_is_imported_in_nodes_and_the_demo_alone(module):
    assert [name for name in imports(module) if ROS.match(name)] == []


@pytest.mark.parametrize('module', [name for name in MODULES if room(name) in NUMPY_ONLY])
def test_robots_control_fleet_and_data_compute_without_torch(module):
    assert 'torch' not in {name.split('.')[0] for name in imports(module)}


def test_import_graph_has_no_cycle():
    assert circle({module: set(imports(module)) & MODULES.keys() for module in MODULES}) == []


def test_import_cycle_is_detected():
    assert circle({'a': {'b'}, 'b': {'c'}, 'c': {'b'}, 'd': set()}) == ['b', 'c', 'b']
    assert circle({'a': {'b', 'c'}, 'b': {'c'}, 'c': set()}) == []
