"""The benchmark of long answers scores each digit at its place, in every way."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.common import report
from benchmarks.common.paired import bootstrap
from benchmarks.compress import lists
from benchmarks.compress.lists import (
    KEEP_RATIOS,
    by_place,
    collect,
    digits_right,
    is_valid,
    main,
    rows,
    table,
    ways,
)
from benchmarks.compress.ways import ROW, STREAM, Way, default
from embodied_kv.config import NEEDLE
from embodied_kv.demo.sim.scene import COLOURS
from embodied_kv.model.policy import Policy
from training.common.words import train_tokenizer
from training.needle.reading import list_answer

SMALL = replace(
    NEEDLE,
    vision=replace(NEEDLE.vision, image_size=64, width=16, mlp=32),
    backbone=replace(NEEDLE.backbone, width=32, layers=3, head_dim=8, mlp=48),
    expert=replace(NEEDLE.expert, width=16, mlp=16),
)
PAGES = 2
CODES = np.arange(21).reshape(7, 3) % 10
NAMES = list(COLOURS)


@pytest.fixture(scope='module')
def found():
    torch.set_num_threads(1)
    words = train_tokenizer(SMALL.backbone.vocab_size)
    return collect(replace(Policy.random(SMALL), tokenizer=words), ways((0.1, 0.5)), PAGES)


def test_a_right_answer_has_all_digits_and_at_least_thirty_tokens():
    said = list_answer(NAMES, CODES)
    assert digits_right(said, NAMES, CODES).all()
    assert len(train_tokenizer(NEEDLE.backbone.vocab_size).encode(f' {said}')) == 34


@pytest.mark.parametrize(
    'said, digits',
    [
        ('', 0),
        ('red 0 1 2', 3),
        ('red 0 1 2 3', 3),  # more digits do not change those before
        ('red 0 9 2, green 3', 3),
        ('red 9 9 9, red 0 1 2', 0),  # the first entry of a colour counts
        ('0 1 2, 3 4 5', 0),  # digits without a colour
    ],
)
def test_the_score_is_the_share_of_digits_at_their_place(said, digits):
    assert digits_right(said, NAMES, CODES).sum() == digits


def test_every_choice_has_the_same_methods_and_the_default_is_the_engines():
    made = ways()
    for ratio in KEEP_RATIOS:
        assert default(STREAM, ratio) in made and default(ROW, ratio) in made
        assert Way('vl_cache', ratio, STREAM) in made
    count = len(made) / (3 * len(KEEP_RATIOS))
    assert count == len({(way.method, way.shares) for way in made})


def test_every_page_is_asked_in_every_way(found):
    for way in (None, *ways((0.1, 0.5))):
        assert len(found.score[way]) == len(found.kept[way]) == PAGES
    assert len(found.tokens) == PAGES


def test_figures_are_one_row_a_way(found):
    made = rows(found)
    assert len(made) == 1 + len(ways((0.1, 0.5))) and made[0]['difference'] == 0
    assert not is_valid(made)  # random weights read nothing
    shown = table(made)
    assert len(shown) == 3 * 6 and {'10%', '50%', '100%'} <= {*shown[0]}
    assert len(by_place(made)) == 1 + 3 * 6


def test_bounds_are_those_of_resampled_means():
    found = bootstrap([0.1] * 30)
    assert found == pytest.approx(dict.fromkeys(('difference', 'low', 'high', 'bound'), 0.1))
    found = bootstrap(np.random.default_rng(0).normal(0.5, 1.0, 400))
    assert found['difference'] - found['low'] == pytest.approx(1.96 / 20, rel=0.1)
    assert found['low'] < found['bound'] < found['difference'] < found['high']


def test_the_bundled_weights_list_codes_and_the_command_prints_tables(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(report, 'OUT', tmp_path)
    few = [Way('streaming_llm', 0.1, STREAM), default(STREAM, 0.1)]
    monkeypatch.setattr(lists, 'ways', lambda: few)
    main(['--pages', '2'])
    said = capsys.readouterr().out
    result = json.loads(said.splitlines()[-1])
    assert result['tokens_per_answer'] >= 30 and result['rows'][0]['score'] > 0.9
    assert len(result['rows']) == 3 and 'digits right' in said
