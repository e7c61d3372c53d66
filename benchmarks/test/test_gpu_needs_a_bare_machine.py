"""The GPU stages import torch and a few other packages, but neither ROS nor a simulator."""

import ast
import importlib.util
import re
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import __main__ as programme
from benchmarks.gpu.stages import STAGES

ROOT = Path(__file__).resolve().parents[2]
OURS = 'embodied_kv', 'benchmarks', 'training'
THERE = {  # as docs/gpu.md states
    *('numpy', 'torch', 'triton', 'transformers', 'tokenizers', 'safetensors', 'PIL', 'yaml'),
    *('rich', 'matplotlib', 'huggingface_hub'),
}
PAGE = (ROOT / 'docs' / 'gpu.md').read_text()
MODULE = dict(pillow='PIL', pyyaml='yaml')  # import names that differ from the package's
MODULES = sorted({stage.module for stage in STAGES if importlib.util.find_spec(stage.module)})


def file_of(module):
    """Return the file of a module or package of this repository, or None for any other module."""
    path = ROOT.joinpath(*module.split('.'))
    files = (path.with_suffix('.py'), path / '__init__.py')
    return next((file for file in files if file.is_file()), None)


def is_for_types(node):
    return isinstance(node, ast.If) and getattr(node.test, 'id', '') == 'TYPE_CHECKING'


def at_import(tree):
    """Yield the syntax nodes that are executed when a module is imported."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or is_for_types(node):
            continue
        yield node
        yield from at_import(node)


def imported(file):
    for node in at_import(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f'{node.module}.{alias.name}' for alias in node.names)


def foreign(module):
    """Return the third-party packages that a module imports, also by way of our modules."""
    names, seen, found = [module, f'{module}.__main__'], {''}, set()
    while names:
        name = names.pop()
        ours = name.split('.')[0] in OURS
        if name in seen:
            continue
        seen.add(name)
        if not ours:
            found.add(name.split('.')[0])
        elif (file := file_of(name)) is not None:
            names += [*imported(file), name.rpartition('.')[0]]
    return {n for n in found if importlib.util.find_spec(n)} - set(sys.stdlib_module_names)


@pytest.mark.parametrize('module', MODULES)
def test_a_stage_imports_what_is_there(module):
    assert foreign(module) - THERE == set()


@pytest.mark.parametrize('stage', STAGES, ids=lambda stage: stage.name)
def test_the_page_states_what_a_stage_needs(stage):
    stated = set()
    for packages, stages in re.findall(r'^\| ([\w, ]+) \| (.*) \|$', PAGE, re.MULTILINE):
        named = re.findall(r'`(\w+)`', stages)
        if (stage.name not in named) if stages.startswith('every stage') else stage.name in named:
            stated |= {MODULE.get(name, name) for name in packages.split(', ')}
    assert foreign(stage.module) - {'triton'} <= stated


def test_the_programme_itself_needs_python_alone():
    assert foreign(programme.__name__.removesuffix('.__main__')) == set()


def test_what_needs_a_simulator_is_seen():
    assert 'mujoco' in foreign('benchmarks.memory.trace')
