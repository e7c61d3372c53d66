"""What the speed of compression compares: one frame, one question, and a tenth of its cache."""

import pytest
import torch

from embodied_kv.bench import compress_speed_request as request
from embodied_kv.bench import compress_speed_scene as scene
from embodied_kv.bench.scene import FullPolicy
from embodied_kv.config import TINY

TOKENS = scene.IMAGE + scene.TEXT


@pytest.fixture(scope='module')
def policy():
    torch.set_num_threads(1)
    return FullPolicy.random(scene.model('tiny', TINY.backbone, dtype='float32'))


@pytest.fixture
def engines(policy):
    room = dict(rows=4, streams=2, flat_rows=1)
    return {
        way: scene.make_engine(policy, TOKENS, **room | own) for way, own in scene.WAYS.items()
    }


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(scene, 'ANSWER', 6)


@torch.inference_mode()
def test_all_ways_answer_about_one_frame(engines):
    runs = request.frame(engines, 3, 'cpu')
    full, by_stream = engines['full'], engines['by stream']
    own, copied = (e.kv.prefixes.row(e.kv.current().row) for e in (full, by_stream))
    for wanted, got in zip(own, copied, strict=True):
        torch.testing.assert_close(got, wanted, atol=0, rtol=0)
    assert runs['by stream']['prefill'] == runs['full']['prefill']
    for way, run in runs.items():
        parts = [run[part] for part in request.PARTS]
        assert all(part > 0 for part in parts) if way != 'full' else not any(parts), way
        assert run['steps'] > 0
        engine = engines[way]
        ended = [e for e in engine.kv.streams()]
        assert not ended and engine.kv.crowded == 0
        engine.kv.check_integrity()


@torch.inference_mode()
@pytest.mark.parametrize('way', scene.WAYS)
def test_a_stream_keeps_its_share(engines, way):
    engine = engines[way]
    values = scene.noise(engine)
    stream = scene.ask(engine, scene.fill(engine, values, values, 1000))
    engine.decode()
    layers = TINY.backbone.layers
    if way == 'full':
        assert stream.lease.flat < 0 and engine.kv.tails.lengths[0, stream.tail] == scene.QUESTION
    else:
        assert engine.kv.flats.lengths[:, stream.lease.flat].sum() == scene.ALPHA * layers * 1000


@torch.inference_mode()
def test_costs_are_shares_of_prefill_and_begin(policy):
    costs, answers = request.measure(policy, TOKENS, 1, 'cpu')
    assert [row['scored'] for row in costs] == [
        'by row',
        *(f'by stream, {tokens}' for tokens in scene.QUESTIONS),
    ]
    for row in costs:
        parts = sum(row[f'{part}_ms'] for part in request.PARTS)
        assert row['overhead_pct'] == pytest.approx(100 * parts / row['prefill_begin_ms'])
        assert row['context'] == TOKENS
    full = answers[0]
    assert full['way'] == 'full' and full['speedup'] == full['bound'] == 1
    for row in answers:
        parts = row['prefill_ms'] + row['begin_ms'] + row['steps_ms']
        assert row['total_ms'] == pytest.approx(parts)
        assert row['speedup'] == pytest.approx(full['total_ms'] / row['total_ms'])
