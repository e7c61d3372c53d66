"""A stage with stored results runs again only if it was cut off or --again is given."""

import json
from dataclasses import replace

import pytest
from gpu_stages import Programme, stage

from benchmarks.gpu import results


@pytest.fixture
def programme(tmp_path, monkeypatch):
    return Programme(tmp_path, monkeypatch)


def test_what_is_there_is_not_run_again(programme):
    assert programme('good', 'bad') == programme('good', 'bad') == 1
    assert (programme.times('good'), programme.times('bad')) == (1, 1)
    assert programme('good') == 0, 'of what was asked for, nothing failed'


@pytest.mark.parametrize('again, times', [('all', (2, 2)), ('failed', (1, 2))])
def test_again_means_all_or_what_failed(programme, again, times):
    programme('good', 'bad')
    programme('good', 'bad', words=('--again', again))
    assert (programme.times('good'), programme.times('bad')) == times


def test_what_the_budget_cuts_is_run_again(programme, monkeypatch):
    monkeypatch.setattr('benchmarks.gpu.__main__.LEAST', 0.5)
    assert programme(stage('hang'), 'good', words=('--budget', str(2 / 60))) == 0
    assert programme.found('hang') is None and programme.times('hang') == 1
    assert programme.times('good') == 0, 'no time was left'
    kept = json.loads((programme.folder / 'results.json').read_text())['stages']['hang']
    assert kept['status'] == 'cut' and kept['figures'] == dict(rows=[dict(n=2)])
    programme(stage('hang', minutes=1 / 60), 'good')
    assert (programme.times('hang'), programme.times('good')) == (2, 1)


def test_a_stage_that_is_named_and_not_reached_is_reported_by_the_exit_status(programme):
    named = replace(stage('good'), name='pi05')
    assert programme(named, words=('--budget', '0')) == 0
    assert programme(named, words=('--budget', '0', '--stages', 'pi05')) == 1
    assert programme(named, words=('--stages', 'pi05')) == 0


def test_dry_figures_stand_for_no_others(programme, capsys):
    programme('good', words=('--dry',))
    assert programme('good') == 2 and programme.times('good') == 1
    assert 'dry must be that of the results in' in capsys.readouterr().err


@pytest.mark.parametrize('name', ['card', 'torch'])
def test_results_of_another_machine_are_not_continued(programme, name, monkeypatch, capsys):
    programme('good')
    here = results.machine(dry=False)
    monkeypatch.setattr(results, 'machine', lambda *_: here | {name: 'another'})
    assert programme('good') == 2 and programme.times('good') == 1
    assert f'{name} must be that of the results' in capsys.readouterr().err


def test_results_of_another_commit_are_marked(programme):
    programme('good', words=('--commit', 'first'))
    assert programme('good', 'bad', words=('--commit', 'second')) == 1
    assert programme.times('good') == 1
    lines = programme.summary.splitlines()
    assert 'commit: second' in lines
    assert [line.endswith('of commit first') for line in lines[-2:]] == [True, False]


def test_a_damaged_file_is_made_again(programme):
    programme('good')
    (programme.folder / 'results.json').write_text('{"stages": {"good": ')
    assert programme('good') == 0 and programme.times('good') == 2


def test_results_are_there_after_every_stage(programme):
    programme('good', stage('copies'))
    seen = json.loads((programme.folder / 'stages' / 'seen').read_text())
    assert [*seen['stages']] == ['good'] and seen['stages']['good']['status'] == 'ok'
    assert {'card', 'torch', 'commit', 'dry'} < seen.keys()


def test_an_unknown_stage_is_refused(programme, capsys):
    with pytest.raises(SystemExit):
        programme('good', words=('--stages', 'taste'))
    assert "invalid choice: 'taste'" in capsys.readouterr().err
