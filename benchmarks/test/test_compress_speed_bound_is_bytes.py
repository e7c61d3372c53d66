"""The predicted time of a decode step follows from its bytes, also for a slice of a model."""

import dataclasses

import pytest
import torch

from benchmarks.common import physics
from benchmarks.common.clock import Ceilings
from benchmarks.common.scene import FullPolicy
from benchmarks.compress.speed import decode, models, scene, serve
from benchmarks.compress.speed.plan import Steps
from embodied_kv.config import PI05, TINY

MACHINE = Ceilings(gflops=1e4, gbytes=1e3)  # faster than any real machine


@pytest.fixture(scope='module')
def policy():
    torch.set_num_threads(1)
    return FullPolicy.random(models.model('tiny', TINY.backbone, dtype='float32'))


@pytest.mark.parametrize(
    'whole, part',
    [(PI05.backbone, 'pi05, a sixth'), (models.MISTRAL_7B, 'Mistral 7B, a sixteenth')],
)
def test_a_slice_has_the_ratio_of_the_whole(whole, part):
    """The ratio is that of the bytes of full steps to those of compressed steps."""
    full, cut = models.model('whole', whole), models.model(part)
    assert cut.backbone == dataclasses.replace(
        whole, layers=cut.backbone.layers, vocab_size=cut.backbone.vocab_size
    )
    for context, batch in ((1024, 1), (8192, 16)):
        ratios = [
            physics.decode_step(c, context, batch)['bytes']
            / physics.decode_step(c, context // 10, batch)['bytes']
            for c in (full, cut)
        ]
        assert ratios[0] == pytest.approx(ratios[1], rel=1e-4)


@torch.inference_mode()
def test_points_that_do_not_fit_are_left_out(policy, monkeypatch):
    held = policy.config.kv_bytes_per_token
    monkeypatch.setattr(decode, 'MOST', 2 * 500 * held)
    rows = list(decode.grid(policy, Steps((500, 2000), (1, 2, 4), 2), MACHINE, 'cpu'))
    assert [(row['context'], row['batch']) for row in rows] == [(500, 1), (500, 2)]
    for row in rows:
        assert row['kv_mb'] == row['batch'] * 500 * held / 1e6
        assert row['speedup'] == row['full_ms'] / row['compressed_ms']
        assert 1 < row['by_bytes'] < 1 / scene.KEEP_RATIO
        assert 0 < row['full_of_floor'] < 1 and 0 < row['compressed_of_floor'] < 1


@torch.inference_mode()
def test_streams_of_one_frame_share_a_row_and_not_copies(policy):
    rows = list(decode.shared(policy, 1000, (1, 4), 1, MACHINE, 'cpu'))
    assert [row['way'] for row in rows] == 2 * list(scene.WAYS)
    assert [row['speedup'] for row in rows if row['way'] == 'full'] == [1, 1]
    one, four = ({row['way']: row for row in rows if row['streams'] == n} for n in (1, 4))
    decode_kv = four['full']['mb'] - one['full']['mb']  # decode KV of three streams
    copies = four['by text']['mb'] - one['by text']['mb'] - decode_kv
    assert four['by row']['mb'] - one['by row']['mb'] == pytest.approx(decode_kv)
    assert copies == pytest.approx(
        3 * scene.KEEP_RATIO * 1000 * policy.config.kv_bytes_per_token / 1e6
    )
    newest = policy.config.kv_bytes_per_token / 1e6  # one token of a newer frame
    assert four['full']['language_mb'] == pytest.approx(four['full']['mb'] + newest)
    assert four['by row']['language_mb'] < 0.3 * four['by row']['mb']


def test_a_prefix_that_is_shared_is_read_once(policy):
    """Compressed rows of 1 / keep_ratio streams have as many bytes as the row that they share."""
    c = policy.config
    row = decode.reads(c, 10, 1, 1000, 20)
    copies = decode.reads(c, 10, 10, 100, 20)
    assert row['bytes'] == pytest.approx(copies['bytes'])
    assert row['flops'] > copies['flops']
    apart = decode.reads(c, 10, 10, 1000, 20)
    assert apart['bytes'] - row['bytes'] == 9 * 1000 * c.kv_bytes_per_token


def test_throughput_adds_up_what_was_measured():
    answers = [
        dict(way='full', prefill_ms=1000.0, begin_ms=10.0),
        dict(way='by text', prefill_ms=1000.0, begin_ms=20.0),
    ]
    step = dict(model='m', context=1, batch=4, full_ms=8.0, compressed_ms=4.0)
    full, compressed = serve.throughput(answers, [step])
    assert full['latency_s'] == pytest.approx(4 * 1.010 + 99 * 0.008)
    assert compressed['language_s'] == pytest.approx(4 * 0.020 + 99 * 0.004)
    assert compressed['tokens_s'] == pytest.approx(400 / compressed['latency_s'])
    assert full['gain'] == 1 and compressed['language_gain'] > compressed['gain'] > 1
