"""YAML in documented `ros2` commands fits its message; no field name is a boolean in YAML."""

import re
from importlib import import_module
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / 'README.md', *ROOT.glob('docs/**/*.md'), *ROOT.glob('examples/*/README.md')]
INTERFACES = sorted(file for kind in ('msg', 'srv', 'action') for file in ROOT.glob(f'{kind}/*'))
FIELD = re.compile(r'^[\w/\[\]<>=]+ +([a-z]\w*)', re.MULTILINE)
COMMAND = re.compile(
    r'ros2 (?:service call|action send_goal|topic pub)[^\n"`]*? (\w+)/(srv|action|msg)/(\w+)'
    r'(?:[ \\\n]+"([^"]*)")?'
)
PARTS = {'srv': 'Request', 'action': 'Goal'}  # the part that the YAML fills
COMMANDS = sorted({found for page in PAGES for found in COMMAND.findall(page.read_text())})


@pytest.mark.parametrize('file', INTERFACES, ids=lambda file: file.name)
def test_names_of_fields_are_words_in_yaml(file):
    fields = FIELD.findall(re.sub('#.*', '', file.read_text()))
    assert [name for name in fields if yaml.safe_load(f'{name}: 1') != {name: 1}] == []


def test_a_name_that_yaml_takes_for_a_truth_is_found():
    assert FIELD.findall('bool on\nuint8 FRESH=0\nActionChunk[<=1] left\n') == ['on', 'left']
    assert yaml.safe_load('on: 1') == {True: 1}


@pytest.mark.parametrize('package, kind, name, given', COMMANDS, ids=lambda part: part[:40])
def test_documented_commands_fill_their_messages(package, kind, name, given):
    message = getattr(import_module(f'{package}.{kind}'), name)
    message = getattr(message, PARTS[kind]) if kind in PARTS else message
    values = yaml.safe_load(given) if given else {}
    assert set(values) <= set(message.get_fields_and_field_types())
    message(**{field: value for field, value in values.items() if not isinstance(value, list)})


def test_commands_are_found():
    names = {name for _, _, name, _ in COMMANDS}
    assert {'Record', 'ExecuteInstruction', 'Mission', 'MemoryUpsert', 'SetBool'} <= names
