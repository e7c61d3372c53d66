"""The summary has the card, torch, the commit and a line per stage; --dry figures are marked."""

import pytest
from gpu_stages import Programme, stage

from benchmarks.gpu import summary
from benchmarks.gpu.results import Results
from benchmarks.gpu.stages import STAGES

MACHINE = dict(dry=False, card='A100', torch='2.11.0', commit='abc')


@pytest.fixture
def programme(tmp_path, monkeypatch):
    return Programme(tmp_path, monkeypatch)


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path, MACHINE)


def test_there_is_a_line_for_each_stage(programme, capsys):
    programme('good', 'bad', stage('refuse', option='lerobot'), words=('--commit', 'abc'))
    lines = programme.summary.splitlines()
    assert lines[0].startswith('card: ') and lines[1].startswith('torch: ')
    assert lines[2] == 'commit: abc'
    good, bad, refuse = lines[-3:]
    assert good.split()[:2] == ['good', 'ok'] and good.endswith('n is 3')
    assert bad.split()[:2] == ['bad', 'failed'] and 'illegal access; n is 1' in bad
    assert refuse.endswith('no path is given: --lerobot PATH')
    assert programme.summary in capsys.readouterr().out


def test_tables_are_printed_and_nothing_is_run(programme, capsys):
    programme('good')
    assert programme('good', 'bad', words=('--tables',)) == 0
    assert '## good: rows\n\n| n |\n| --- |\n| 3 |\n' in capsys.readouterr().out
    assert programme.times('good') == 1 and not programme.times('bad')


def test_dry_figures_are_marked(programme):
    programme('good', words=('--dry',))
    assert programme.summary.startswith(summary.DRY)


def ended(**more):
    return dict(stage='pi05', status='ended', reason='ended after 75 s', seconds=75, **more)


def test_the_card_comes_first(results):
    card = dict(name='A100', driver='580', power_limit_w='400')
    figures = dict(card=card, ceilings=dict(gflops=7e5, gbytes=4e3))
    found = dict(stage='facts', status='ok', reason='', seconds=3, figures=figures)
    results.keep(found)
    lines = summary.text(STAGES, results).splitlines()
    assert lines[:5] == [
        'card: A100',
        'torch: 2.11.0',
        'commit: abc',
        'driver: 580',
        'power limit w: 400',
    ]
    assert any(line.endswith('700 TFLOP/s in bfloat16, 4000 GB/s') for line in lines)
    assert sum(' not run ' in line for line in lines) == len(STAGES) - 1


def test_figures_that_are_not_whole_are_said_to_be(results):
    results.keep(ended(figures=dict(rows=[dict(views=2)])))
    assert 'ended after 75 s; its figures are not whole' in summary.text(STAGES, results)
    assert '## pi05: rows' in summary.tables(STAGES, results)


def test_a_cell_stays_in_its_cell():
    assert summary.table([dict(a_b='x|y\nz', c=1.23456)])[0::2] == [
        '| a b | c |',
        '| x/y z | 1.235 |',
    ]
