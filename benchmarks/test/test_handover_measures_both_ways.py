"""Each frame reaches its reader in both ways, and a call is what the product does."""

import json

import pytest

from benchmarks.handover import WAYS, main, measured


@pytest.mark.parametrize('is_busy', [False, True])
def test_every_frame_arrives_in_both_ways(is_busy):
    found = measured(3, 0.001, is_busy)
    assert list(found) == list(WAYS)
    assert all(0 < f['p50_us'] <= f['p99_us'] for f in found.values())


def test_the_line_has_what_the_call_saves(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(['--frames', '2', '--period', '0.001', '--json'])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found['bench'] == 'handover' and set(found['saved_us']) == {'alone', 'busy'}
