"""The reader of contracts accepts each contract field that a message of the package names."""

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

import embodied_kv
from embodied_kv.robots.contract import Contract
from embodied_kv.robots.declared import CHOICES, Declared, contract_field
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.reading import SHIPPED, _sections, parse

FACTS = [field.name for field in fields(Declared)]
SECTIONS = ('checkpoint', 'language', 'openpi', 'workspace', 'estop', 'limits', 'feedback')
PATH = re.compile(rf'(?<![\w./])({"|".join(SECTIONS)}|observations|actions)((?:\.[\w\0]+)+)')
VALUES = {
    'state_in_prompt': True,
    'normalization': {'state': 'mean_std', 'action': 'quantiles'},
    **{name: choices[-1] for name, choices in CHOICES.items()},
    'lerobot_before_0_5': True,
    'chunk_size': 7,
    'fps': 12.5,
}


def without_facts():
    """Return the values of a contract with only the fields that its reader requires."""
    values = yaml.safe_load((SHIPPED / 'so101.yaml').read_text())
    for section in ('checkpoint', 'chunk_size', 'execution_horizon', 'openpi', 'language'):
        values.pop(section, None)
    for source in sources(values, 'observations') + sources(values, 'actions'):
        source.pop('names', None)
    return values


def sources(values, part):
    return values['observations' if part == 'observations' else 'actions'][
        'observation.state' if part == 'observations' else 'action'
    ]


def write(values, field, fact):
    """Set `field`, spelled as in messages, to the value of `fact`."""
    if '[]' in field:
        part, name = field.split('.')[0], field.rpartition('.')[2]
        for k, source in enumerate(sources(values, part)):
            old = {'names': [f'n{k}_{i}' for i in range(len(source['select']))], 'relative': False}
            source[name] = old.get(name, source.get(name))
        return
    if field == 'observations':
        camera = {'topic': 'camera/image_raw', 'type': 'sensor_msgs/msg/Image'}
        values['observations']['observation.images.extra'] = {'channel': camera}
        return
    *sections, name = field.split('.')
    for section in sections:
        values = values.setdefault(section, {})
    values[name] = VALUES[fact]


@pytest.mark.parametrize('fact', FACTS)
def test_field_of_each_fact_reaches_the_reader_of_checkpoints(fact):
    values = without_facts()
    before = getattr(Embodiment.of(parse(values, 'so101')).declared, fact)
    write(values, contract_field(fact), fact)
    found = getattr(Embodiment.of(parse(values, 'so101')).declared, fact)
    assert found is not None
    if fact in VALUES:
        assert found == VALUES[fact] != before
    elif fact in ('state_names', 'action_names', 'views'):
        assert found != before


def literals(path):
    """Yield the string literals of a module except docstrings; formatted values become NUL."""
    tree = ast.parse(path.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    skipped = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else '\0' for p in node.values)
            yield ''.join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in skipped:
                yield node.value


def named():
    """Return (module, field) for each contract field that a message of the package names."""
    root = Path(embodied_kv.__file__).parent
    return {
        (path.relative_to(root).as_posix(), match[0])
        for path in sorted(root.glob('**/*.py'))
        for text in literals(path)
        if ' ' in text
        for match in PATH.finditer(text)
    }


def is_accepted(field):
    """Return whether the reader accepts the path; capitals and NUL stand for any name."""
    section, *rest = field.rstrip('.').split('.')
    known = Contract.model_fields[section].annotation
    models = _sections(known)
    if section in ('limits', 'observations', 'actions', 'feedback'):
        rest = [name for name in rest if name.islower() and name not in STATE_AND_ACTION]
    for name in rest:
        owner = next((m for m in models if name in m.model_fields), None)
        if owner is None:
            return False
        models = _sections(owner.model_fields[name].annotation)
    return True


STATE_AND_ACTION = ('observation', 'state', 'action', 'images')


def test_messages_name_fields():
    assert ('nodes/mission.py', 'language.questions') in named()
    assert ('model/checkpoints/facts.py', 'checkpoint.normalization') in named()
    assert not is_accepted('checkpoint.relative') and not is_accepted('limits.JOINT.speed')
    assert is_accepted('limits.JOINT.tracking_error')


@pytest.mark.parametrize(('module', 'field'), sorted(named()))
def test_field_in_a_message_is_accepted(module, field):
    assert is_accepted(field), f'{module} advises {field}'
