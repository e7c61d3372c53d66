"""Records of one static group share a unit, and KEEP and CacheBlend answer the same problems."""

import json
from argparse import Namespace

import pytest
import torch

from benchmarks.common import report
from benchmarks.common.command import BenchmarkError
from benchmarks.memory import record_groups as bench
from benchmarks.memory.construction import ALONE, BLEND, ENCODED, GROUPS, KEEP, PUBLISHED
from benchmarks.memory.record_groups import (
    CONSTRUCTIONS,
    PAIRS,
    constructed,
    differences,
    main,
)
from benchmarks.memory.records import questions
from embodied_kv.memory.encoder import HashingEncoder
from embodied_kv.model.planner import Planner
from training.judge.file import save_judge
from training.records.gate import Gate
from training.records.records import TOKENS
from training.records.trainer import RECORDS, init_small

DRAWN = list(questions(6, 3, 20, 2))


@pytest.fixture(scope='module')
def untaught(tmp_path_factory):
    torch.set_num_threads(1)
    model = Planner.empty(RECORDS, 'cpu')
    init_small(model, 0)
    path = tmp_path_factory.mktemp('judge') / 'records.safetensors'
    save_judge(path, model.state_dict(), RECORDS, {})
    return path


@pytest.mark.parametrize('construction', CONSTRUCTIONS)
def test_problems_have_the_same_records_questions_and_answers(construction):
    made = constructed(DRAWN, construction, HashingEncoder())
    for (records, row, record, _), (problem, _) in zip(DRAWN, made, strict=True):
        tokens = [list(piece.ids) for piece in problem.prompt.pieces]
        assert sorted(tokens) == sorted(records.memory[row, 1:].reshape(-1, TOKENS).tolist())
        asked = {int(problem.prompt.pieces[i].segment) for i in problem.chain}
        assert len(asked) == 3 and max(asked) == record


def test_true_groups_hold_more_links_than_the_encoder_and_single_records_none():
    held = {
        construction: sum(kept for _, kept in constructed(DRAWN, construction, HashingEncoder()))
        for construction in CONSTRUCTIONS
    }
    assert held[GROUPS] > held[ENCODED] >= held[ALONE] == 0


def test_antecedents_stay_earlier_in_true_groups():
    for (records, row, _, _), (problem, _) in zip(
        DRAWN, constructed(DRAWN, GROUPS, HashingEncoder()), strict=True
    ):
        place = {int(piece.segment): i for i, piece in enumerate(problem.prompt.pieces)}
        like = records.like[row]
        assert all(place[like[i]] < place[i] for i in range(1, len(like)))


def test_differences_compare_keep_over_the_encoders_groups(monkeypatch):
    monkeypatch.setattr(bench, 'SHARES', (0.2,))
    said = {(0.2, built, blend): [False] * 40 for _, blend, built in PAIRS}
    said |= {(0.2, ENCODED, PUBLISHED): [True] * 40, (0.2, ENCODED, KEEP): [False] * 40}
    found = {(row['keep'], row['other']): row for row in differences(said)}
    better = found[f'{PUBLISHED}, {ENCODED}', f'{BLEND}, {ALONE}']
    assert better['difference'] == 100 and better['low'] > 80
    assert found[f'{KEEP}, {ENCODED}', f'{BLEND}, {ALONE}']['difference'] == 0


def test_a_judge_without_knowledge_is_refused(untaught, monkeypatch):
    monkeypatch.setattr(bench, 'GATE', dict(problems=2, seed=1))
    with pytest.raises(BenchmarkError, match='cannot tell ways of reuse apart'):
        bench.run(Namespace(judge=untaught, problems=1, records=[10], json=True, ungated=False))


def test_the_command_returns_figures_and_prints_tables(untaught, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(report, 'OUT', tmp_path)
    monkeypatch.setattr(bench, 'SHARES', (0.2,))
    missed = Gate(1.0, 0.6, 1, {0: (1.0, 1.0)})
    monkeypatch.setattr(bench, 'gate', lambda model, problems, seed: missed)
    main(['--judge', str(untaught), '--problems', '1', '--records', '10', '--ungated'])
    said = capsys.readouterr().out
    result = json.loads(said.splitlines()[-1])
    assert not result['gate']['holds']
    assert {row['n'] for row in result['rows']} == {4}
    assert len(result['differences']) == len(PAIRS) and 'right answers' in said
