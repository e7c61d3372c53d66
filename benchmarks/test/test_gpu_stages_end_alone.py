"""A stage that fails, crashes, hangs or refuses to run is reported and ends no other stage."""

import pytest
from gpu_stages import PRINTED, Programme, lives, stage


@pytest.fixture
def programme(tmp_path, monkeypatch):
    monkeypatch.delenv('PYTHONFAULTHANDLER', raising=False)  # no traceback of a crash on stderr
    return Programme(tmp_path, monkeypatch)


def test_every_end_has_its_name_and_the_next_stage_is_run(programme):
    names = ('bad', 'crash', 'unequal', 'silent', 'refuse', 'lacks', 'broken', 'good')
    assert programme(*names) == 1
    said = {
        name: (programme.found(name)['status'], programme.found(name)['reason']) for name in names
    }
    assert said == {
        'bad': ('failed', 'exit status 1: SystemError: illegal access'),
        'crash': ('failed', 'SIGSEGV: it said nothing'),
        'unequal': ('failed', 'what it compares differs'),
        'silent': ('failed', 'it printed no figures'),
        'refuse': ('skipped', 'it said nothing'),
        'lacks': ('skipped', 'the package mujoco is missing'),
        'broken': (
            'failed',
            "exit status 1: ModuleNotFoundError: No module named 'embodied_kv.nothing'",
        ),
        'good': ('ok', ''),
    }
    tails = {name: programme.found(name)['tail'] for name in names}
    assert tails['bad'][0] == 'Traceback (most recent call last):'
    assert tails['bad'][-1] == 'SystemError: illegal access'
    assert tails['crash'] == ['words'] and tails['good'] == []


@pytest.mark.parametrize(
    'target, words, status, reason',
    [
        (lambda found: 'n is 3', (), 'missed', 'n is 3'),
        (lambda found: '', (), 'ok', ''),
        (lambda found: 'n is 3', ('--dry',), 'ok', ''),
        (
            lambda found: found['m'],
            (),
            'failed',
            "its figures have no 'm', which the target needs",
        ),
    ],
)
def test_a_stage_that_ends_well_is_judged_by_its_target(programme, target, words, status, reason):
    code = programme(stage('good', judge=target), words=words)
    found = programme.found('good') if not words else None
    assert code == (status == 'failed')
    if found is not None:
        assert (found['status'], found['reason']) == (status, reason)
    assert f'good               {status}' in programme.summary


def test_a_stage_that_fails_is_not_judged(programme):
    assert programme(stage('unequal', judge=lambda found: 'slow')) == 1
    assert programme.found('unequal')['reason'] == 'what it compares differs'


def test_a_stage_that_hangs_is_ended_with_what_it_started(programme):
    assert programme(stage('hang', minutes=2 / 60), 'good') == 1
    found = programme.found('hang')
    assert (found['status'], found['reason']) == ('ended', 'ended after 2 s')
    assert found['seconds'] < 20
    assert found['figures'] == dict(rows=[dict(n=2)]), 'what it had said is kept'
    assert not lives(int((programme.folder / PRINTED / 'child').read_text()))
    assert programme.found('good')['status'] == 'ok'


def test_a_stage_without_its_option_is_skipped(programme):
    assert programme(stage('good', option='lerobot')) == 0
    found = programme.found('good')
    assert (found['status'], programme.times('good')) == ('skipped', 0)
    assert found['reason'] == 'no path is given: --lerobot PATH'


def test_its_option_is_handed_on(programme, tmp_path):
    programme(stage('good', option='lerobot'), words=('--lerobot', str(tmp_path)))
    assert programme.found('good')['command'].endswith(f' --lerobot {tmp_path} --json')
