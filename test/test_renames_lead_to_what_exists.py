"""`tools/renames.json` maps old names to names that exist; an old module is gone."""

import importlib.util
import json
from importlib import import_module
from pathlib import Path

import pytest

RENAMES = json.loads((Path(__file__).resolve().parent.parent / 'tools/renames.json').read_text())


def exists(module):
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return False
    return found is not None and found.origin is not None  # None: a folder without a module


@pytest.mark.parametrize('old, new', RENAMES['modules'].items())
def test_a_moved_module_is_where_it_is_said_to_be(old, new):
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
