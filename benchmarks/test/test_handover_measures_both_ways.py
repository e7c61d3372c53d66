"""In benchmark handover each frame reaches its reader by a call and by a message."""

import json

import pytest

from benchmarks.handover import WAYS, Actor, main, measured
from embodied_kv.config import TINY


@pytest.mark.parametrize('is_busy', [False, True])
def test_every_frame_arrives_in_both_ways(is_busy):
    found = measured(3, 0.001, is_busy)
    assert all(0 < found[way]['p50_us'] <= found[way]['p99_us'] for way in WAYS)


def test_every_frame_becomes_a_chunk_in_both_ways():
    actor = Actor(TINY, 1, 'cpu')
    try:
        found = measured(3, 0.001, False, actor)
    finally:
        actor.close()
    assert all(0 < found[way]['p50_us'] <= found[way]['p99_us'] for way in WAYS)


def test_the_line_has_what_the_call_saves(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(['--frames', '2', '--period', '0.001', '--json'])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found['bench'] == 'handover'
    for to in ('reader', 'chunk'):
        assert found[to].keys() == {'alone', 'busy'}
        assert all(found[to][beside].keys() == {*WAYS, 'saved_us'} for beside in found[to])
