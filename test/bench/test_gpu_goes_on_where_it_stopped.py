"""A stage that has its file is not run again, unless it was cut, or is asked for."""

import json

import pytest
from gpu_stages import Programme, stage


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
    monkeypatch.setattr('embodied_kv.bench.gpu.__main__.LEAST', 0.5)
    assert programme(stage('hang'), 'good', words=('--budget', str(2 / 60))) == 1
    assert programme.found('hang') is None and programme.times('hang') == 1
    assert programme.times('good') == 0, 'no time was left'
    kept = json.loads((programme.folder / 'hang.json').read_text())
    assert kept['status'] == 'cut' and kept['figures'] == dict(rows=[dict(n=2)])
    programme(stage('hang', minutes=1 / 60), 'good')
    assert (programme.times('hang'), programme.times('good')) == (2, 1)


def test_dry_figures_stand_for_no_others(programme):
    programme('good', words=('--dry',))
    assert programme.found('good') is None and programme.found('good', dry=True)
    programme('good')
    assert programme.times('good') == 2


def test_a_damaged_file_is_made_again(programme):
    programme('good')
    (programme.folder / 'good.json').write_text('{"status": "ok", ')
    assert programme('good') == 0 and programme.times('good') == 2


def test_an_unknown_stage_is_refused(programme, capsys):
    with pytest.raises(SystemExit):
        programme('good', words=('--stages', 'taste'))
    assert "invalid choice: 'taste'" in capsys.readouterr().err
