"""The attention metrics follow their definitions: hit rates, sparsity, share of each modality."""

import numpy as np
import pytest
import torch
from compress_bench_cases import QUESTIONS, answered

from benchmarks.compress import metrics
from benchmarks.compress.ways import KEEP_RATIOS, METHODS, ROW, STRICT

LAYERS = 4


@pytest.fixture(scope='module')
def found():
    harness, asked = answered(QUESTIONS[1], 5)
    with torch.inference_mode():
        return metrics.measure(harness, asked), asked


def test_every_way_is_looked_at_in_every_layer(found):
    measured, asked = found
    for by in (STRICT, ROW):
        for method in METHODS:
            for keep_ratio in KEEP_RATIOS:
                pairs = measured['way', by, method, keep_ratio]
                assert len(pairs) == LAYERS and all(0 <= x <= 1 for pair in pairs for x in pair)
    n = asked.frame.n
    assert measured['tokens'] == (asked.frame.vision, n - asked.frame.vision, len(asked.tokens), 5)


def test_more_tokens_hold_more_of_the_mass(found):
    measured, _ = found
    for by in (STRICT, ROW):
        some = KEEP_RATIOS[1:]  # with so few tokens a keep ratio of 1% is too short to compress
        masses = [
            sum(mass for _, mass in measured['way', by, 'h2o', keep_ratio]) for keep_ratio in some
        ]
        assert masses == sorted(masses)


def test_the_prompt_is_vision_and_text(found):
    measured, _ = found
    for name in ('contribution', 'coverage'):
        parts = zip(measured[f'{name}_vision'], measured[f'{name}_text'], strict=True)
        assert [sum(part) for part in parts] == pytest.approx([1.0] * LAYERS)


def test_sparsity_counts_what_is_visible_and_low():
    weights = torch.zeros(2, 2, 5)  # two tokens; the last positions are their own
    weights[0, 0, :4] = torch.tensor([0.9, 0.005, 0.095, 0.0])
    weights[0, 1] = torch.tensor([0.5, 0.2, 0.2, 0.1, 0.0])
    weights[1, :, 0] = 1.0
    wanted = [1 - (2 + 4) / 9, 1 - 2 / 9]
    assert metrics.sparsity(weights, 0.01).tolist() == pytest.approx(wanted)


def test_tables_have_a_row_per_method(found):
    means = {name: np.asarray(value) for name, value in found[0].items()}
    layers = metrics.layer_rows(means)
    assert [row['layer'] for row in layers] == list(range(LAYERS))
    assert all(row['prefill_low'] <= row['prefill_sparsity'] for row in layers)
    tables = metrics.pivots(metrics.hit_rows(means))
    assert [row['name'] for row in tables['hit of a way, strict']] == list(METHODS)
    assert set(tables['hit of a score, row'][0]) == {'name', '1%', '5%', '10%', '20%', '40%'}
