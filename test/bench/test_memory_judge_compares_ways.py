"""All ways answer the same problems, at the same number of computed tokens where that is said."""

import json

import numpy as np
import pytest
import torch

from embodied_kv.bench.common import report
from embodied_kv.bench.memory.judge import (
    FALLING,
    METHODS,
    ORDER,
    SEED,
    SHARE,
    main,
)
from embodied_kv.bench.memory.judge_ask import Asking, problems
from embodied_kv.bench.memory.judge_shares import SHARES, explore, ways
from embodied_kv.memory.reuse import Reuse
from embodied_kv.train.judge.exam import draw_cell
from embodied_kv.train.judge.file import JUDGE, bundled_judge, load_judge


@pytest.fixture(scope='module')
def asking():
    torch.set_num_threads(1)
    return Asking(load_judge(bundled_judge(0)))


def some(layout, hops, segments=32, count=6):
    return list(problems(draw_cell(count, SEED, segments, layout, hops)))


def test_a_problem_is_its_prompt_and_its_chain():
    for problem in some('backward', 3):
        ids, chain = problem.prompt.ids, problem.chain
        assert len(chain) == 4 and list(chain) == sorted(chain, reverse=True)
        assert ids[-1] == ids[problem.prompt.starts[chain[0]]]
        assert ids[problem.prompt.starts[chain[-1]] + 1] == problem.answer


def test_full_prefill_is_right_and_full_reuse_is_not(asking):
    hopping = [*some('backward', 2), *some('forward', 2)]
    full = [asking.ask(problem, METHODS['full']) for problem in hopping]
    none = [asking.ask(problem, Reuse()) for problem in hopping]
    assert np.mean([reply.right for reply in full]) >= 0.9
    assert np.mean([reply.right for reply in none]) <= 0.3
    assert all(reply.kept == (1.0,) * 4 for reply in full)
    assert all(reply.kept == (0.0,) * 4 for reply in none)


def test_without_hops_all_ways_find_the_raw_value(asking):
    for reuse in METHODS.values():
        right = [asking.ask(problem, reuse).right for problem in some('forward', 0)]
        assert np.mean(right) >= 0.75


def test_ways_compute_as_many_tokens(asking):
    """Of 128 in memory: a share of 0.16 in each of three layers, however it is spread."""
    (problem,) = some('backward', 1, 64, 1)
    budget = (1 + 3 * SHARE) * 128
    for name in ('keep', 'keep even', 'keep no hops', 'keep restart', 'cacheblend'):
        computed = asking.ask(problem, METHODS[name]).work.computed
        memory = sum(computed) - 3 * len(computed)  # <bos>, <ask> and a key in each layer
        assert abs(memory - budget) <= 2 * 3, name  # a segment in each later layer
    assert FALLING.average == pytest.approx((1 + 3 * SHARE) / JUDGE.backbone.layers)


def test_attention_is_looked_at_after_each_layer_that_is_chosen_by(asking):
    (one,), (none,) = some('backward', 3, count=1), some('forward', 0, count=1)
    found = asking.attention_hits(one)
    assert len(found) == JUDGE.backbone.layers - 1
    assert all(0 <= layer['link'] <= 1 for layer in found)
    assert all(layer['link'] is None for layer in asking.attention_hits(none))


def test_the_command_returns_figures_and_prints_tables(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(report, 'OUT', tmp_path)
    main(['--problems', '1', '--segments', '8', '--seeds', '0'])
    said = capsys.readouterr().out
    result = json.loads(said.splitlines()[-1])
    assert json.loads((tmp_path / 'memory_judge.json').read_text()) == result
    assert {row['method'] for row in result['rates']} == set(METHODS)
    assert all(row['n'] == 6 for row in result['rates'])
    assert [row['verdict'] in ('holds', 'open', 'reversed') for row in result['order']] == [
        True
    ] * (len(ORDER) - 1)
    assert len(result['by_hops']) == 2 * len(METHODS)
    assert 'right answers' in said and "the paper's order" in said


def test_shares_are_explored_at_equal_tokens(asking):
    (problem,) = some('backward', 1, 64, 1)
    for share in SHARES[::3]:
        counts = {
            sum(asking.ask(problem, reuse).work.computed[1:]) for reuse in ways(share).values()
        }
        assert max(counts) - min(counts) <= 3, 'a token of a segment of two, in each of 3 layers'
    rows = explore([asking], 1, shares=(0.08,))
    assert [row['n'] for row in rows] == [3] * 2 * len(ways(1.0))
