"""The needle benchmark asks for every code in every way and counts the kept patches of it."""

from dataclasses import replace

import pytest
import torch

from benchmarks.compress.needle import collect, needles, share, unseen
from benchmarks.compress.tally import row, verdict
from benchmarks.compress.ways import MODES, Way, all_ways, judged
from embodied_kv.config import NEEDLE, TINY
from embodied_kv.model.policy import Policy
from training.common.words import train_tokenizer

SMALL = replace(
    NEEDLE,
    vision=replace(NEEDLE.vision, image_size=64, width=16, mlp=32),
    backbone=replace(NEEDLE.backbone, width=32, layers=3, head_dim=8, mlp=48),
    expert=replace(NEEDLE.expert, width=16, mlp=16),
)
WAYS = all_ways(keep_ratios=(0.1, 0.4), sweep=False)
PAGES, CODES = 2, 7


@pytest.fixture(scope='module')
def found():
    torch.set_num_threads(1)
    policy = Policy.random(SMALL)
    words = train_tokenizer(SMALL.backbone.vocab_size)
    return collect(replace(policy, tokenizer=words), WAYS, PAGES)


def test_every_code_is_asked_in_every_way(found):
    assert len(found.kinds) == PAGES * CODES and found.frames == [0] * CODES + [1] * CODES
    for way in (None, *WAYS):
        assert len(found.of(way)) == PAGES * CODES
    assert {len(found.needles[way]) for way in WAYS} == {PAGES * CODES}


def test_random_tokens_are_needles_as_often_as_they_are_kept(found):
    for keep_ratio in (0.1, 0.4):
        way = Way('random', keep_ratio, 'strict')
        kept, held = (sum(x[way]) / (PAGES * CODES) for x in (found.kept, found.needles))
        assert kept == pytest.approx(keep_ratio, abs=0.01)
        assert held == pytest.approx(keep_ratio, abs=0.1)


def test_needles_are_found_where_the_pages_hold_them(found):
    """With ratio 0.1 streaming_llm keeps the first 4 tokens and the last ones, which are text."""
    places = torch.cat([torch.from_numpy(page.at[0]) for page in unseen(SMALL, PAGES)])
    expected = (places < 4).float().mean(1).tolist()
    for by in MODES:
        assert found.needles[Way('streaming_llm', 0.1, by)] == pytest.approx(expected)


def test_figures_are_one_row_a_way_and_its_verdicts(found):
    rows = [row(found, way) | dict(needles=0.5) for way in WAYS]
    table = needles(rows, 'strict')
    assert [line['method'] for line in table][0] == 'vl_cache'
    assert table[0]['10%'] == table[0]['40%'] == 50
    assert {'right', 'to_whole', 'kept', 'by', 'method', 'keep_ratio'} <= set(rows[0])
    for way in judged():
        assert verdict(found, way)['difference'] == pytest.approx(0, abs=1)


def test_a_share_is_meant_over_layers_and_heads():
    first = torch.tensor([[0, 1, 2], [2, 3, 4]])  # one row per head
    second = torch.tensor([[7], [5]])
    assert share([first, second], torch.tensor([2, 5])) == pytest.approx((0.5 + 0.5 + 0 + 0.5) / 4)


def test_pages_are_others_than_those_of_training_and_whole():
    one, other = unseen(SMALL, 2)
    assert one.cells.shape == (1, 64, 8, 8, 3) and one.images().shape == (1, 64, 64, 3)
    assert (one.codes != other.codes).any()


def test_a_model_that_sees_no_page_is_refused():
    with pytest.raises(ValueError, match='tiny sees no page: it needs 1 view, and a token per'):
        next(unseen(TINY, 1))
