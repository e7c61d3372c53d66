"""`compress.speed` fills every table, writes a plot, and prints the same figures as one line."""

import json
from dataclasses import replace

import pytest

from benchmarks.common import clock, report
from benchmarks.compress.speed import __main__ as speed
from benchmarks.compress.speed import models, scene
from benchmarks.compress.speed.models import MISTRAL_SLICE, SMALL
from benchmarks.compress.speed.plan import Steps
from embodied_kv.config import TINY


def test_the_last_line_has_the_rows_of_all_models(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(report, 'OUT', tmp_path)
    monkeypatch.setattr(clock, 'ceilings', lambda device: clock.Ceilings(90.0, 10.0))
    monkeypatch.setattr(
        speed, 'measure', lambda model, *_: ((name, [dict(of=model)]) for name in speed.TABLES)
    )
    speed.main(['--quick', '--device', 'cpu', '--json'])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert json.loads((tmp_path / 'compress_speed.json').read_text()) == found
    models_in_turn = [dict(of=model) for model in speed.QUICK.steps]
    assert all(found[name] == models_in_turn for name in speed.TABLES)
    assert found['settings']['keep_ratio'] == 0.1 and found['ceilings']['gbytes'] == 10


@pytest.mark.slow
def test_a_quick_run_fills_every_table(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(report, 'OUT', tmp_path)
    monkeypatch.setattr(models, 'BACKBONES', dict.fromkeys(models.BACKBONES, TINY.backbone))
    monkeypatch.setattr(scene, 'ANSWER', 12)
    monkeypatch.setattr(clock, 'ceilings', lambda device: clock.Ceilings(90.0, 10.0))
    steps = {SMALL: Steps((1000,), (1, 2), 1), MISTRAL_SLICE: Steps((500,), (1,), 1)}
    quick = replace(speed.QUICK, steps=steps, shared=1000, cache=8)
    monkeypatch.setattr(speed, 'QUICK', quick)
    speed.main(['--quick', '--device', 'cpu'])
    out = capsys.readouterr().out
    found = json.loads(out.splitlines()[-1])
    assert json.loads((tmp_path / 'compress_speed.json').read_text()) == found
    assert (tmp_path / 'compress_speed.png').exists()
    assert {name: len(found[name]) for name in speed.TABLES} == dict(
        cost=4, answer=3, decode=3, shared=3, serve=4, deferred=5, capacity=1
    )
    assert all(f'{name}, keep ratio 0.1' in out for name in speed.TABLES)
    assert found['settings']['keep_ratio'] == 0.1 and found['ceilings']['gbytes'] == 10
    assert found['settings']['steps'][SMALL]['contexts'] == [1000]
