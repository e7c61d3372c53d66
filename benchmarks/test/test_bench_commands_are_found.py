"""Every command that `python -m benchmarks` lists exists and describes itself in --help."""

import json
import shlex
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest

from benchmarks import __main__ as bench
from benchmarks import compress, memory
from benchmarks.common import report
from benchmarks.common.command import BenchmarkError, command, overview

NAMES = sorted({name for name, *_ in (*bench.DEFAULT, *bench.FULL, ('compress.grid',))})


def module_of(name):
    """Return the module of a command, or the `__main__` module if the command is a folder."""
    name = f'benchmarks.{name}'
    whole = find_spec(name).submodule_search_locations is None
    return import_module(name if whole else f'{name}.__main__')


@pytest.mark.parametrize('name', NAMES)
def test_a_command_says_its_name_and_its_physics(name, capsys):
    with pytest.raises(SystemExit) as caught:
        module_of(name).main(['--help'])
    said = capsys.readouterr().out
    assert caught.value.code == 0
    assert f'usage: python -m benchmarks.{name} ' in said and '--json' in said
    assert 'Physics:' in said


@pytest.mark.parametrize('plan', [bench.DEFAULT, bench.FULL])
def test_the_whole_is_listed_without_a_run(plan, monkeypatch, capsys):
    options = ['--full'] if plan is bench.FULL else []
    monkeypatch.setattr(sys, 'argv', ['bench', '--list', *options])
    bench.main()
    lines = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in lines] == [['python', '-m']] * len(plan)
    assert [tuple(line[2:]) for line in lines] == [
        (f'benchmarks.{name}', *options) for name, *options in plan
    ]


@pytest.mark.parametrize('folder, name', [(compress, 'compress'), (memory, 'memory')])
def test_a_folder_of_commands_says_which_there_are(folder, name, monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', [name])
    overview(name, folder.__doc__)
    said = capsys.readouterr().out
    for part in (other.partition('.')[2] for other in NAMES if other.startswith(f'{name}.')):
        assert f'- {part}: ' in said
    monkeypatch.setattr(sys, 'argv', [name, 'taste'])
    with pytest.raises(SystemExit):
        overview(name, folder.__doc__)


def test_figures_are_a_file_and_the_last_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(report, 'OUT', tmp_path)
    made = command('a.part', 'Text.', lambda p: p.add_argument('--n', type=int), vars)
    made(['--n', '3'])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found == json.loads((tmp_path / 'a_part.json').read_text())
    assert (found['bench'], found['n'], found['json']) == ('a_part', 3, False)
    assert found['machine']['cores'] >= 1 and found['machine']['load'] >= 0


def test_what_cannot_be_measured_is_one_line(monkeypatch, tmp_path, capsys):
    def refuse(args):
        raise BenchmarkError('there is no robot')

    monkeypatch.setattr(report, 'OUT', tmp_path)
    with pytest.raises(SystemExit) as caught:
        command('a', 'Text.', lambda parser: None, refuse)([])
    assert caught.value.code == 2 and not list(tmp_path.iterdir())
    assert capsys.readouterr().err == 'python -m benchmarks.a: there is no robot\n'
