"""Static chains are contiguous units, and full reuse answers questions about their links."""

import json

import numpy as np
import pytest
import torch

from benchmarks.common import report
from benchmarks.memory import construction
from benchmarks.memory.construction import (
    ALONE,
    BLOCK,
    BLOCKS,
    CONSTRUCTIONS,
    ENCODED,
    GROUPS,
    PUBLISHED,
    WAYS,
    constructed,
    main,
    rows,
    way,
)
from benchmarks.memory.judge_batch import ProblemBatch
from embodied_kv.memory.encoder import HashingEncoder
from embodied_kv.memory.reuse import Reuse
from training.judge.exam import draw_cell
from training.judge.file import bundled_judge, load_judge

CHAINS = draw_cell(6, 3, 25, 'backward', 2)


def built(how, static):
    static = np.full(CHAINS.keys.shape, static)
    return list(constructed(CHAINS, how, static, HashingEncoder()))


@pytest.mark.parametrize('how', CONSTRUCTIONS)
def test_the_question_its_answer_and_its_segments_are_the_same(how):
    for row, problem in enumerate(built(how, True)):
        assert problem.answer == CHAINS.answers[row, CHAINS.start[row]]
        assert len(problem.chain) == 3
        pairs = {tuple(piece.ids) for piece in problem.prompt.pieces}
        assert pairs == {*zip(CHAINS.keys[row].tolist(), CHAINS.values[row].tolist(), strict=True)}


@pytest.mark.parametrize('how', CONSTRUCTIONS)
def test_a_unit_stands_together_as_it_was_computed(how):
    for problem in built(how, True):
        starts, pieces = problem.prompt.starts, problem.prompt.pieces
        begins = {}
        for start, piece in zip(starts, pieces, strict=True):
            assert begins.setdefault(piece.unit, start - piece.offset) == start - piece.offset


def test_a_static_chain_is_one_unit_and_a_dynamic_one_is_none():
    for problem in built(GROUPS, True):
        assert len({problem.prompt.pieces[i].unit for i in problem.chain}) == 1
    for how in (GROUPS, ENCODED, ALONE):
        (problem, *_) = built(how, False)
        assert len({piece.unit for piece in problem.prompt.pieces}) == 25
    sizes = [piece.unit for piece in built(BLOCKS, True)[0].prompt.pieces]
    assert sizes.count(sizes[0]) == BLOCK


def test_full_reuse_follows_a_chain_inside_its_group_and_no_other():
    torch.set_num_threads(1)
    model = load_judge(bundled_judge(0))
    joint, apart = (ProblemBatch(model, built(GROUPS, static)) for static in (True, False))
    assert joint.ask(Reuse()).right.sum() >= 5 and apart.ask(Reuse()).right.sum() <= 2


def test_ways_are_the_nodes_own_with_the_share_that_is_asked_for():
    assert way('keep', 0.16, 4).schedule.average == pytest.approx((1 + 3 * 0.16) / 4)
    assert way('keep without hops', 0.16, 4).hops == 0
    published = way(PUBLISHED, 0.16, 4)
    assert (published.restart, published.scoring_tokens) == (0, 0)
    assert published.schedule.ratios[1] > published.schedule.ratios[2]
    assert way('cacheblend by segment', 0.32, 4).segments
    assert not way('cacheblend by token', 0.32, 4).segments


def test_differences_are_to_keep_with_groups():
    said = {(0.16, GROUPS, 'keep'): [True, True], (0.16, ALONE, 'keep'): [True, False]}
    assert [row['difference'] for row in rows(said)] == [0, -50]


def test_the_command_returns_figures_and_prints_a_table(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(report, 'OUT', tmp_path)
    monkeypatch.setattr(construction, 'SHARES', (0.16,))
    main(['--problems', '1', '--segments', '8'])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(result['rows']) == len(CONSTRUCTIONS) * len(WAYS)
    assert {row['n'] for row in result['rows']} == {12}
