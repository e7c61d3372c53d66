"""All ways answer the same problems at the same number of tokens, once the gate holds."""

import json
from itertools import groupby

import numpy as np
import pytest
import torch

from benchmarks.common import report
from benchmarks.common.command import BenchmarkError
from benchmarks.memory import judge, judge_tables
from benchmarks.memory.judge import LAYERS, all_ways, main
from benchmarks.memory.judge_ask import Asking, problems
from benchmarks.memory.judge_batch import ProblemBatch, Replies
from benchmarks.memory.judge_tables import FAMILIES, PAPER, Asked, chosen, gate
from benchmarks.memory.judge_ways import FULL, PARTS, REUSE, SHARES, SIZES, Part, ways
from embodied_kv.memory.reuse import Reuse
from training.judge.exam import draw_cell
from training.judge.file import bundled_judge, load_judge


@pytest.fixture(scope='module')
def model():
    torch.set_num_threads(1)
    return load_judge(bundled_judge(0))


def some(layout, links, segments=25, count=4):
    return list(problems(draw_cell(count, 11, segments, layout, links)))


def test_a_problem_is_its_prompt_and_its_chain():
    for problem in some('backward', 3):
        ids, chain = problem.prompt.ids, problem.chain
        assert len(chain) == 4 and list(chain) == sorted(chain)
        assert ids[-1] == ids[problem.prompt.starts[chain[-1]]], 'a backward chain starts last'
        assert ids[problem.prompt.starts[chain[0]] + 1] == problem.answer


def test_many_at_once_say_what_the_serving_prefill_says(model):
    asked = [*some('backward', 2), *some('forward', 1)]
    asking, batch, named = Asking(model), ProblemBatch(model, asked), dict(all_ways())
    for key in (
        (1.0, FULL),
        (0.0, REUSE),
        (0.16, 'keep directed falling'),
        (0.32, 'keep accumulated even restart'),
        (0.16, 'cacheblend token gradual'),
        (0.16, 'cacheblend segment even'),
    ):
        found = batch.ask(named[key])
        served = [asking.ask(problem, named[key]) for problem in asked]
        assert found.right.tolist() == [reply.right for reply in served], key
        for one, reply, problem in zip(found.computed, served, asked, strict=True):
            assert float(one) == pytest.approx(
                np.mean(reply.work.computed) / problem.prompt.length
            )
        assert found.kept.tolist() == [pytest.approx(reply.kept) for reply in served], key


def test_full_recompute_is_right_and_full_reuse_is_not(model):
    batch = ProblemBatch(model, [*some('backward', 2, count=8), *some('forward', 2, count=8)])
    assert batch.ask(dict(all_ways())[1.0, FULL]).right.float().mean() >= 0.9
    found = batch.ask(Reuse())
    assert found.right.float().mean() <= 0.4 and not found.kept.any()


@pytest.mark.parametrize('share', SHARES)
def test_ways_of_one_schedule_compute_as_many_tokens(model, share):
    """They are equal where shares are whole numbers of segments, by token and by segment."""
    for size in SIZES:
        batch = ProblemBatch(model, some('backward', 1, size, 1))
        by_schedule = sorted(
            ((name.split()[-1 - name.endswith('restart')], reuse) for name, reuse in pick(share)),
            key=lambda pair: pair[0],
        )
        for schedule, group in groupby(by_schedule, key=lambda pair: pair[0]):
            tokens = {
                round(float(batch.ask(r).computed) * (3 + 2 * size) * LAYERS) for _, r in group
            }
            assert len(tokens) == 1 or schedule == 'falling', (schedule, tokens)
            assert max(tokens) - min(tokens) <= LAYERS - 1


def pick(share):
    """Return one KEEP of each schedule and every CacheBlend."""
    names = ('keep directed', 'cacheblend')
    return [(n, r) for n, r in ways(share, LAYERS) if n.startswith(names) and 'restart' not in n]


def test_development_and_report_have_judges_and_problems_of_their_own():
    development, reported = PARTS['development'], PARTS['report']
    assert not {*development.judges} & {*reported.judges} and development.seed != reported.seed


def replies(right):
    right = torch.tensor(right)
    return Replies(right, torch.ones(len(right), LAYERS), torch.ones(len(right)))


def test_the_first_of_the_best_is_chosen_over_both_shares():
    asked, low, high = Asked(), SHARES[0], SHARES[1]
    said = {(0.0, REUSE): replies([False, False]), (1.0, FULL): replies([True, True])}
    for family in FAMILIES:
        said |= {(low, f'{family} a'): replies([True, True])}
        said |= {(high, f'{family} a'): replies([False, False])}
        said |= {(s, f'{family} {n}'): replies([True, n != 'a']) for s in SHARES for n in 'bc'}
    asked.add(0, (25, 'backward', 1), said)
    assert chosen(asked) == {family: f'{family} b' for family in FAMILIES}
    assert gate(asked)['holds']


def test_where_full_reuse_loses_nothing_nothing_is_compared(monkeypatch):
    monkeypatch.setattr(judge_tables, 'LEAST_LOST', 1.01)
    monkeypatch.setattr(judge, 'PARTS', {'development': Part((0,), 1, 1)})
    monkeypatch.setattr(judge, 'all_ways', lambda: list(all_ways())[:2])
    args = judge.argparse.Namespace(problems=1, segments=[25], json=True)
    with pytest.raises(BenchmarkError, match='cannot tell ways of reuse apart'):
        judge.run(args)


def test_the_command_returns_figures_and_prints_tables(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(report, 'OUT', tmp_path)
    monkeypatch.setattr(judge_tables, 'LEAST_FULL', 0.5)
    few = [one for one in all_ways() if not one[0][1].endswith(('restart', 'gradual'))]
    monkeypatch.setattr(judge, 'all_ways', lambda: few)
    main(['--problems', '1', '--segments', '25'])
    said = capsys.readouterr().out
    result = json.loads(said.splitlines()[-1])
    assert json.loads((tmp_path / 'memory_judge.json').read_text()) == result
    assert len(result['rates']) == len(few)
    assert {row['n'] for row in result['rates']} == {12} and set(result['chosen']) == {*FAMILIES}
    assert all(row['least'] <= row['difference'] <= row['most'] for row in result['differences'])
    assert {row['keep'] for row in result['differences']} == {result['chosen']['keep'], PAPER}
    assert 'right answers' in said and 'the gate' in said
