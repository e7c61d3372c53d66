"""The compared ways answer one question about one frame; compressed ones keep a tenth of it."""

import pytest
import torch

from benchmarks.common import clock
from benchmarks.common.scene import FullPolicy
from benchmarks.compress.speed import models, request, scene
from embodied_kv.config import TINY

TOKENS = models.IMAGE + models.TEXT
MACHINE = clock.Ceilings(gflops=1e4, gbytes=1e3)  # faster than any real machine


@pytest.fixture(scope='module')
def policy():
    torch.set_num_threads(1)
    return FullPolicy.random(models.model('tiny', TINY.backbone, dtype='float32'))


@pytest.fixture
def engines(policy):
    room = dict(rows=4, streams=2, compressed_rows=1)
    return {
        way: scene.make_engine(policy, TOKENS, **room | own) for way, own in scene.WAYS.items()
    }


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(scene, 'ANSWER', 6)


@torch.inference_mode()
def test_all_ways_answer_about_one_frame(engines):
    calls = request.frame(engines, 3, 6, 'cpu')
    full = engines['full'].kv
    for way, engine in engines.items():
        pairs = zip(
            *(kv.prefixes.row(kv.frames.current().row) for kv in (full, engine.kv)), strict=True
        )
        for wanted, got in pairs:
            torch.testing.assert_close(got, wanted, atol=0, rtol=0)
        assert not engine.kv.streams.live() and engine.kv.copies.allocation_failures == 0
        engine.kv.check_integrity()
        assert all(calls[phase][way]['took'] > 0 for phase in calls)


@torch.inference_mode()
def test_every_part_is_seen_where_it_happens(engines):
    calls = request.frame(engines, 3, 6, 'cpu')
    happens = {
        (phase, way, part)
        for phase in ('prefill', 'begin')
        for way in engines
        for part in request.PARTS
        if calls[phase][way][part] > 0
    }
    assert happens == {
        *(('prefill', 'by row', part) for part in request.PARTS),
        ('prefill', 'by text', 'statistics'),
        *(('begin', 'by text', part) for part in request.PARTS),
    }


@torch.inference_mode()
@pytest.mark.parametrize('way', scene.WAYS)
def test_a_stream_keeps_its_share(engines, way):
    engine = engines[way]
    values = scene.noise(engine)
    stream = scene.ask(engine, scene.fill(engine, values, values, 1000), 24, 6)
    engine.decode()
    layers = TINY.backbone.layers
    if way == 'full':
        assert not stream.lease.is_copy and engine.kv.decode_kv.lengths[0, stream.decode_row] == 24
    else:
        assert (
            engine.kv.compressed.lengths[:, stream.lease.row].sum()
            == scene.KEEP_RATIO * layers * 1000
        )


@torch.inference_mode()
def test_costs_are_shares_of_prefill_and_begin(policy):
    costs, answers = request.measure(policy, 1, 2, MACHINE, 'cpu')
    assert [row['scored'] for row in costs] == [
        'by row',
        *(f'by text, {tokens}' for tokens in scene.QUESTIONS),
    ]
    for row in costs:
        parts = sum(row[f'{part}_ms'] for part in request.PARTS)
        assert row['overhead_pct'] == pytest.approx(100 * parts / row['prefill_begin_ms'])
        assert row['context'] == TOKENS and 0 < row['floor_ms'] < parts
    full = answers[0]
    assert full['way'] == 'full' and full['speedup'] == full['by_bytes'] == 1
    for row in answers:
        parts = row['prefill_ms'] + row['begin_ms'] + row['steps_ms']
        assert row['total_ms'] == pytest.approx(parts) and 0 < row['floor_ms'] < parts
        assert row['speedup'] == pytest.approx(full['total_ms'] / row['total_ms'])
