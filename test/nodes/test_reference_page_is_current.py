"""docs/reference.md has every interface with its fields and comments."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REFERENCE = runpy.run_path(str(ROOT / 'tools' / 'reference.py'))


def test_reference_page_equals_the_interface_files():
    assert (ROOT / 'docs' / 'reference.md').read_text() == REFERENCE['page'](), (
        'run: tools/env python tools/reference.py > docs/reference.md'
    )


def test_parts_fields_defaults_and_comments_are_found():
    request, response = REFERENCE['parts_of'](
        '# Set a limit.\nint32 rows -1  # prefix rows;\n               # -1 keeps it\n---\n'
        'uint8 DONE=1   # it is set\nstring[] names\n'
    )
    (rows,) = request.entries
    assert request.comments == ['Set a limit.']
    assert (rows.type, rows.name, rows.default, rows.value) == ('int32', 'rows', '-1', '')
    assert rows.comments == ['prefix rows;', '-1 keeps it']
    assert [(e.type, e.name, e.value) for e in response.entries] == [
        ('uint8', 'DONE', '1'),
        ('string[]', 'names', ''),
    ]


def test_line_that_is_no_field_is_refused():
    with pytest.raises(ValueError, match='must be a field or a constant'):
        REFERENCE['parts_of']('string a b c')


def test_tables_escape_bars():
    (part,) = REFERENCE['parts_of']('string name  # a|b')
    assert '| `name` | `string` | a\\|b |' in REFERENCE['table'](part)


def test_topics_services_and_actions_are_found():
    found = {(role, name): kind for role, name, kind, _ in REFERENCE['endpoints']()}
    for endpoint, kind in {
        ('published', 'action_chunk'): 'ActionChunk',
        ('subscribed', 'command_watchdog/setpoint'): 'VelocitySetpoint',
        ('service', 'control/stop'): 'Trigger',
        ('service', 'capsule/restore'): 'CapsuleRestore',
        ('service', 'memory/query'): 'MemoryQuery',
        ('service', 'kv/stats'): 'KvStats',
        ('action', 'mission'): 'Mission',
    }.items():
        assert found[endpoint] == kind
