"""`compress speed`: every table, a picture, and the same figures as one line."""

import json
from dataclasses import replace

from embodied_kv.bench import compress, report
from embodied_kv.bench import compress_speed as speed
from embodied_kv.bench import compress_speed_plot as plots
from embodied_kv.bench import compress_speed_scene as scene
from embodied_kv.config import TINY


def test_a_quick_run_fills_every_table(monkeypatch, tmp_path, capsys):
    for module in (report, plots):
        monkeypatch.setattr(module, 'OUT', tmp_path)
    monkeypatch.setattr(scene, 'BACKBONES', dict.fromkeys(scene.BACKBONES, TINY.backbone))
    monkeypatch.setattr(scene, 'ANSWER', 12)
    monkeypatch.setattr(scene, 'bandwidth', lambda device: dict(read=10.0, copy=9.0))
    steps = {speed.SMALL: ((1000,), (1, 2), 1), speed.MISTRAL: ((500,), (1,), 1)}
    monkeypatch.setattr(speed, 'QUICK', replace(speed.QUICK, steps=steps, shared=1000, cache=8))
    compress.main(['speed', '--quick', '--device', 'cpu'])
    out = capsys.readouterr().out
    found = json.loads(out.splitlines()[-1])
    assert json.loads((tmp_path / 'compress_speed.json').read_text()) == found
    assert (tmp_path / 'compress_speed.png').exists()
    assert {name: len(found[name]) for name in speed.TABLES} == dict(
        cost=4, answer=3, decode=3, shared=1, serve=4, capacity=1
    )
    assert all(f'{name}, alpha 0.1' in out for name in speed.TABLES)
    assert found['alpha'] == 0.1 and found['gbytes']['read'] == 10.0
