"""Every training is a command, and every field of its recipe is an option of it."""

import sys
from dataclasses import fields
from importlib import import_module

import pytest

from training.common import command
from training.judge.trainer import JudgeRecipe
from training.needle.trainer import NeedleRecipe
from training.planner.trainer import PlannerRecipe
from training.policy.recipe import PolicyRecipe
from training.records.trainer import RecordsRecipe
from training.run.recipe import RunRecipe

RECIPES = dict(policy=PolicyRecipe, planner=PlannerRecipe, needle=NeedleRecipe, judge=JudgeRecipe)
RECIPES |= dict(run=RunRecipe, records=RecordsRecipe)
WHOLE = (
    'policy.generate',
    'policy.export',
    'policy.interpolate',
    'planner.exam',
    'planner.mission_exam',
)  # commands of one module
COMMANDS = {**dict.fromkeys((*WHOLE, 'evaluate')), **RECIPES}


@pytest.mark.parametrize('name', COMMANDS)
def test_a_command_says_its_name_and_its_recipe(name, monkeypatch, capsys):
    module = import_module(f'training.{name}' + ('' if name in WHOLE else '.__main__'))
    monkeypatch.setattr(sys, 'argv', ['command', '--help'])
    with pytest.raises(SystemExit) as caught:
        module.main()
    said = capsys.readouterr().out
    assert caught.value.code == 0
    assert f'usage: python -m training.{name} ' in said
    for field in fields(COMMANDS[name]) if COMMANDS[name] else ():
        assert f'--{field.name.replace("_", "-")} ' in said


def test_options_become_a_recipe(monkeypatch):
    words = 'command --steps 2 3 --most 10 12 --records 6 8 --rate 0.5 --seed 7'
    monkeypatch.setattr(sys, 'argv', words.split())
    given = []
    command.run(
        command.parser('a', 'Text.'), PlannerRecipe, lambda _, recipe: given.append(recipe)
    )
    assert given == [PlannerRecipe(steps=(2, 3), most=(10, 12), records=(6, 8), rate=0.5, seed=7)]


@pytest.mark.parametrize('words', ['--steps 2', '--rate 0.5'])
def test_what_cannot_be_trained_is_one_line(words, monkeypatch, capsys):
    def refuse(arguments, recipe):
        raise ValueError('there is no data')

    monkeypatch.setattr(sys, 'argv', ['command', *words.split()])
    with pytest.raises(SystemExit) as caught:
        command.run(command.parser('a', 'Text.'), PlannerRecipe, refuse)
    reason = 'there is no data' if words == '--rate 0.5' else 'must say as many stages'
    (line,) = capsys.readouterr().err.splitlines()
    assert caught.value.code == 2
    assert line.startswith('python -m training.a: ') and reason in line
