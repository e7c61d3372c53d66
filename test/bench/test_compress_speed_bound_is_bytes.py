"""The bound of a step is its bytes, and a slice of a model has the whole model's ratios."""

import dataclasses

import pytest
import torch

from embodied_kv.bench import compress_speed_decode as decode
from embodied_kv.bench import compress_speed_scene as scene
from embodied_kv.bench import compress_speed_serve as serve
from embodied_kv.bench import physics
from embodied_kv.bench.scene import FullPolicy
from embodied_kv.config import PI05, TINY


@pytest.fixture(scope='module')
def policy():
    torch.set_num_threads(1)
    return FullPolicy.random(scene.model('tiny', TINY.backbone, dtype='float32'))


@pytest.mark.parametrize(
    'whole, part',
    [(PI05.backbone, 'pi05, a sixth'), (scene.MISTRAL, 'Mistral 7B, a sixteenth')],
)
def test_a_slice_has_the_ratio_of_the_whole(whole, part):
    """Bytes of whole over compressed steps agree, so the bounds do."""
    full, cut = scene.model('whole', whole), scene.model(part)
    assert cut.backbone == dataclasses.replace(
        whole, layers=cut.backbone.layers, vocab_size=cut.backbone.vocab_size
    )
    for context, batch in ((1024, 1), (8192, 16)):
        bounds = [
            physics.decode_step(c, context, batch)['bytes']
            / physics.decode_step(c, context // 10, batch)['bytes']
            for c in (full, cut)
        ]
        assert bounds[0] == pytest.approx(bounds[1], rel=1e-4)


@torch.inference_mode()
def test_points_that_do_not_fit_are_left_out(policy, monkeypatch):
    held = policy.config.kv_bytes_per_token
    monkeypatch.setattr(decode, 'MOST', 2 * 500 * held)
    rows = list(decode.grid(policy, (500, 2000), (1, 2, 4), 2, 10.0, 'cpu'))
    assert [(row['context'], row['batch']) for row in rows] == [(500, 1), (500, 2)]
    for row in rows:
        assert row['kv_mb'] == row['batch'] * 500 * held / 1e6
        assert row['speedup'] == row['full_ms'] / row['compressed_ms']
        assert 1 < row['bound'] < 1 / scene.ALPHA


@torch.inference_mode()
def test_streams_of_one_frame_share_a_row_and_not_copies(policy):
    one, four = decode.shared(policy, 1000, (1, 4), 1, 'cpu')
    tail = four['full_mb'] - one['full_mb']  # of three streams
    copies = four['by_stream_mb'] - one['by_stream_mb'] - tail
    assert four['by_row_mb'] - one['by_row_mb'] == pytest.approx(tail)
    assert copies == pytest.approx(3 * scene.ALPHA * 1000 * policy.config.kv_bytes_per_token / 1e6)
    newest = policy.config.kv_bytes_per_token / 1e6  # one token of a newer frame
    assert four['full_alone_mb'] == pytest.approx(four['full_mb'] + newest)
    assert four['by_row_alone_mb'] < 0.3 * four['by_row_mb']


def test_throughput_adds_up_what_was_measured():
    answers = [
        dict(way='full', prefill_ms=1000.0, begin_ms=10.0),
        dict(way='by stream', prefill_ms=1000.0, begin_ms=20.0),
    ]
    step = dict(model='m', context=1, batch=4, full_ms=8.0, compressed_ms=4.0)
    full, compressed = serve.throughput(answers, [step])
    assert full['latency_s'] == pytest.approx(4 * 1.010 + 99 * 0.008)
    assert compressed['words_s'] == pytest.approx(4 * 0.020 + 99 * 0.004)
    assert compressed['tokens_s'] == pytest.approx(400 / compressed['latency_s'])
    assert full['gain'] == 1 and compressed['words_gain'] > compressed['gain'] > 1
