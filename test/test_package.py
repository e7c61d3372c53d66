"""package.xml, setup.py, CHANGELOG.rst and tools/requirements.txt agree with the source."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from catkin_pkg.changelog import get_changelog_from_path
from catkin_pkg.package import parse_package
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = parse_package(ROOT / 'package.xml')

# import: (rosdep key, name for pip). Others are ROS packages of the import's own name.
OUTSIDE = {
    'PIL': ('python3-pil', 'pillow'),
    'av': (None, 'av'),
    'catkin_pkg': ('python3-catkin-pkg-modules', 'catkin_pkg'),
    'cv2': ('python3-opencv', 'opencv-python-headless'),
    'huggingface_hub': (None, 'huggingface-hub'),
    'hypothesis': ('python3-hypothesis', 'hypothesis'),
    'lerobot': (None, None),  # in a folder of its own: tools/lerobot.txt
    'matplotlib': ('python3-matplotlib', 'matplotlib'),
    'mcap': (None, 'mcap'),
    'mcap_ros2': (None, 'mcap-ros2-support'),
    'msgpack': ('python3-msgpack', 'msgpack'),
    'mujoco': ('python3-mujoco-pip', 'mujoco'),
    'numpy': ('python3-numpy', 'numpy'),
    'openpi_client': (None, None),  # in an environment of its own: tools/openpi-client.txt
    'packaging': ('python3-packaging', 'packaging'),
    'prometheus_client': ('python3-prometheus-client', 'prometheus-client'),
    'pyarrow': (None, 'pyarrow'),
    'pydantic': ('python3-pydantic', 'pydantic'),
    'pytest': ('python3-pytest', 'pytest'),
    'rich': ('python3-rich', 'rich'),
    'rosbags': (None, 'rosbags'),
    'safetensors': (None, 'safetensors'),
    'setuptools': (None, 'setuptools'),
    'tensorstore': (None, None),  # the extra 'jax'
    'tokenizers': (None, 'tokenizers'),
    'torch': ('python3-torch', 'torch'),
    'transformers': ('python3-transformers-pip', 'transformers'),
    'triton': (None, 'triton'),
    'websockets': (None, 'websockets'),
    'yaml': ('python3-yaml', 'pyyaml'),
    'zstandard': (None, 'zstandard'),
}
KEYS = dict(OUTSIDE.values()) | {'python3-pytest-timeout': 'pytest-timeout'}
DECLARED = {
    depend.name
    for depends in (PACKAGE.build_depends, PACKAGE.exec_depends, PACKAGE.test_depends)
    for depend in depends
}


def imports(path: Path) -> set[str]:
    """Return the top-level names that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition('.')[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module.partition('.')[0])
    return names


def imported_from_outside() -> list[str]:
    trees = 'embodied_kv', 'benchmarks', 'training', 'launch', 'test'
    files = [file for tree in trees for file in (ROOT / tree).rglob('*.py')]
    tests = [file.stem for file in files if 'test' in file.relative_to(ROOT).parts]
    ours = {'embodied_kv', 'benchmarks', 'training', *tests}
    return sorted(set().union(*map(imports, files)) - set(sys.stdlib_module_names) - ours)


def requirements() -> set[str]:
    lines = (ROOT / 'tools/requirements.txt').read_text().splitlines()
    wanted = [line.partition('#')[0] for line in lines]
    return {Requirement(line).name for line in wanted if line}


def arguments_of_setup() -> dict[str, object]:
    """Return the literal arguments of the call of `setup` in setup.py."""
    calls = [
        n for n in ast.walk(ast.parse((ROOT / 'setup.py').read_text())) if type(n) is ast.Call
    ]
    call = next(n for n in calls if getattr(n.func, 'id', '') == 'setup')
    wanted = ('install_requires', 'extras_require', 'package_data')
    return {k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg in wanted}


@pytest.mark.parametrize('name', imported_from_outside())
def test_every_import_is_declared(name):
    key, pip = OUTSIDE.get(name, (name, None))
    assert key is None or key in DECLARED, f'package.xml lacks {key}, for `import {name}`'
    assert pip is None or pip in requirements(), f'tools/requirements.txt lacks {pip}'


@pytest.mark.parametrize('key', sorted(k for k in DECLARED if k.startswith('python3-')))
def test_every_key_of_a_python_package_is_a_requirement(key):
    assert KEYS.get(key) in requirements(), f'tools/requirements.txt lacks what {key} installs'


def test_what_setup_requires_is_a_requirement():
    said = arguments_of_setup()
    required = [*said['install_requires'], *said['extras_require']['test']]
    assert {Requirement(line).name for line in required} <= requirements()


def test_versions_are_equal():
    run = [sys.executable, ROOT / 'setup.py', '--version']
    setup = subprocess.run(run, check=True, capture_output=True, text=True).stdout.strip()
    changes = get_changelog_from_path(ROOT / 'CHANGELOG.rst', PACKAGE.name)
    released = (v for v in changes.foreach_version() if v[0] != 'forthcoming')
    newest, date, entries = next(released)
    assert PACKAGE.version == setup == newest
    assert date and entries


def test_every_interface_is_importable():
    """The package must be built: `make test` builds it, a bare pytest in a checkout does not."""
    pytest.importorskip('rclpy', reason='no ROS 2 is sourced: run through tools/env')
    from embodied_kv import action, msg, srv

    for module in (msg, srv, action):
        folder = module.__name__.rpartition('.')[2]
        for file in (ROOT / folder).iterdir():
            assert hasattr(module, file.stem), f'{file.name} is not built: make setup'


def test_every_file_of_the_package_that_is_no_module_is_installed():
    files = subprocess.check_output(['git', 'ls-files', 'embodied_kv'], cwd=ROOT, text=True)
    patterns = arguments_of_setup()['package_data']['']
    for file in map(Path, files.split()):
        if file.suffix == '.py':
            continue
        package = next(p for p in file.parents if (ROOT / p / '__init__.py').is_file())
        inside = file.relative_to(package)
        assert any(
            inside.match(p) and len(inside.parts) == len(Path(p).parts) for p in patterns
        ), f'setup.py installs no {file}'
