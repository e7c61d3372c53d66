"""The bundled judges follow chains under full prefill, and lose links under full reuse."""

import pytest
import torch

from embodied_kv.model.weights import Weights
from training.judge.chains import LAYOUTS
from training.judge.exam import HOPS, exam, total
from training.judge.file import BUNDLED, JUDGE, SEEDS, bundled_judge, load_judge
from training.records.gate import LEAST_FULL, LOSSES, rates

PROBLEMS, UNSEEN = 60, 7  # problems in each of 16 cells; a seed that nothing else uses


@pytest.fixture(scope='module', params=SEEDS)
def judge(request):
    torch.set_num_threads(1)
    return load_judge(bundled_judge(request.param))


def test_chains_are_followed_in_every_layout(judge):
    rows = exam(judge, PROBLEMS, UNSEEN, sizes=(16, 64))
    assert total(rows)['rate'] >= 0.99
    for layout in LAYOUTS:
        assert total(rows, layout=layout, hops=HOPS[-1])['rate'] >= 0.96


def test_hops_are_lost_where_segments_never_met(judge):
    rows = exam(judge, PROBLEMS, UNSEEN, sizes=(16, 64), isolated=True)
    assert total(rows, hops=0)['rate'] >= 0.9
    assert total(rows, hops=1)['rate'] <= 0.6, 'a question alone may take a step'
    for hops in HOPS[2:]:
        assert total(rows, hops=hops)['rate'] <= 0.2


@pytest.mark.parametrize('seed', SEEDS)
def test_the_file_says_what_it_is(seed):
    path = bundled_judge(seed)
    card = Weights(path).metadata
    assert {'embodied_kv.recipe', 'embodied_kv.trained', 'embodied_kv.use', 'license'} <= set(card)
    assert f'seed={seed}' in card['embodied_kv.recipe']
    assert path.stat().st_size <= 0.3e6
    assert load_judge(path).config == JUDGE


def test_the_deeper_judge_reads_records_and_loses_links_under_full_reuse():
    torch.set_num_threads(1)
    path = BUNDLED / 'records.safetensors'
    full, reuse = rates(load_judge(path), 30, UNSEEN)
    assert full >= LEAST_FULL and LOSSES[0] <= full - reuse
    assert path.stat().st_size <= 0.7e6
