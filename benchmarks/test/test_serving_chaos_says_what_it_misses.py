"""A broken invariant ends with exit status 1; a missed target is only reported."""

import json

import pytest

from benchmarks.serving import chaos


@pytest.fixture
def judged(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)  # the figures are written there

    def of(ratio, broken=()):
        found = {'broken': list(broken), 'missed': chaos._missed(ratio), 'p99_ratio': ratio}
        monkeypatch.setattr(chaos, 'run', lambda args: found)
        try:
            chaos.main(['--json'])
            status = 0
        except SystemExit as ended:
            status = ended.code
        out, err = capsys.readouterr()
        return status, json.loads(out)['missed'], err

    return of


def test_an_aim_that_is_missed_is_said_and_the_exit_status_stays_0(judged):
    status, missed, said = judged(2.1)
    assert status == 0 and len(missed) == 1
    assert 'p99 beside the mob is 2.1 times that of quiet: the aim is 2' in said


def test_an_aim_that_is_reached_is_not_mentioned(judged):
    assert judged(2.0) == (0, [], '')


def test_a_broken_law_is_exit_status_1(judged):
    status, missed, _ = judged(1.0, ['3 sockets are left over'])
    assert '3 sockets are left over' in status and not missed
