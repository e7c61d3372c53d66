"""package.xml, setup.py, CHANGELOG.rst and tools/requirements.txt say the same as the source."""

import ast
import re
import sys
from pathlib import Path

import pytest
from catkin_pkg.package import parse_package

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = parse_package(ROOT / 'package.xml')

# import: (rosdep key, name for pip). What is not here is a ROS package of the import's own name.
OUTSIDE = {
    'catkin_pkg': (None, 'colcon-common-extensions'),
    'cv2': ('python3-opencv', 'opencv-python-headless'),
    'hypothesis': ('python3-hypothesis', 'hypothesis'),
    'matplotlib': ('python3-matplotlib', 'matplotlib'),
    'mujoco': ('python3-mujoco-pip', 'mujoco'),
    'numpy': ('python3-numpy', 'numpy'),
    'pytest': ('python3-pytest', 'pytest'),
    'rich': ('python3-rich', 'rich'),
    'safetensors': (None, 'safetensors'),
    'setuptools': (None, 'setuptools'),
    'tokenizers': (None, 'tokenizers'),
    'torch': ('python3-torch', 'torch'),
    'transformers': ('python3-transformers-pip', 'transformers'),
    'triton': (None, 'triton'),
    'yaml': ('python3-yaml', 'pyyaml'),
}


def imports(path: Path) -> set[str]:
    """Top-level names that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition('.')[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module.partition('.')[0])
    return names


def imported_from_outside() -> list[str]:
    files = [
        file for room in ('embodied_kv', 'launch', 'test') for file in (ROOT / room).rglob('*.py')
    ]
    ours = {'embodied_kv', *(file.stem for file in (ROOT / 'test').rglob('*.py'))}
    return sorted(set().union(*map(imports, files)) - set(sys.stdlib_module_names) - ours)


def requirements() -> set[str]:
    lines = (ROOT / 'tools/requirements.txt').read_text().splitlines()
    return {re.split('[=<>]', line)[0] for line in lines if line and not line.startswith('#')}


@pytest.mark.parametrize('name', imported_from_outside())
def test_every_import_is_declared(name):
    key, pip = OUTSIDE.get(name, (name, None))
    declared = {
        depend.name
        for depends in (PACKAGE.build_depends, PACKAGE.exec_depends, PACKAGE.test_depends)
        for depend in depends
    }
    assert key is None or key in declared, f'package.xml lacks {key}, for `import {name}`'
    assert pip is None or pip in requirements(), f'tools/requirements.txt lacks {pip}'


def test_versions_are_equal():
    setup = re.search(r"version='([^']+)'", (ROOT / 'setup.py').read_text()).group(1)
    changes = re.search(r'^(\d+\.\d+\.\d+) ', (ROOT / 'CHANGELOG.rst').read_text(), re.M).group(1)
    assert PACKAGE.version == setup == changes


def test_every_interface_is_importable():
    """Where the package is built: `make test` builds it, a bare pytest in a checkout does not."""
    pytest.importorskip('rclpy', reason='no ROS 2 is sourced: run through tools/env')
    from embodied_kv import msg, srv

    for module in (msg, srv):
        folder = module.__name__.rpartition('.')[2]
        for file in (ROOT / folder).iterdir():
            assert hasattr(module, file.stem), f'{file.name} is not built: make setup'
