"""All ways answer the deeper judge's problems on records at equal tokens, once its gate holds."""

import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.common import report
from benchmarks.common.command import BenchmarkError
from benchmarks.memory import records as bench
from benchmarks.memory.judge_ask import Asking
from benchmarks.memory.judge_batch import ProblemBatch
from benchmarks.memory.judge_tables import FAMILIES
from benchmarks.memory.records import SHARES, all_ways, main, problem, problems
from embodied_kv.model.planner import Planner
from training.judge.file import save_judge
from training.records.gate import SIZES, Gate
from training.records.records import DITTO, TOKENS, draw_records
from training.records.trainer import RECORDS, init_small


@pytest.fixture(scope='module')
def untaught():
    torch.set_num_threads(1)
    model = Planner.empty(RECORDS, 'cpu')
    init_small(model, 0)
    return model


@pytest.mark.parametrize('links', bench.LINKS)
def test_an_answer_is_what_the_last_record_of_its_chain_says(links):
    records = draw_records(np.random.default_rng(links), 40, 20)
    for row, record, attribute in np.argwhere(records.links == links)[:20].tolist():
        asked = problem(records, row, record, attribute)
        assert len(asked.chain) == links + 1 and max(asked.chain) == record
        first, *others = (asked.prompt.pieces[i].ids[2 + attribute] for i in asked.chain)
        assert first == asked.answer and set(others) <= {DITTO + attribute}


def test_a_cell_has_as_many_problems_as_asked_for_and_the_same_each_time():
    once, again = (list(problems(7, 3, 10, 3)) for _ in range(2))
    assert [p.prompt.ids.tolist() for p in once] == [p.prompt.ids.tolist() for p in again]
    assert len(once) == 7 and {len(p.chain) for p in once} == {4}


def test_many_at_once_say_what_the_serving_prefill_says(untaught):
    asked, named = list(problems(3, 5, 10, 2)), dict(all_ways(untaught))
    asking, batch = Asking(untaught), ProblemBatch(untaught, asked)
    for key in ((0.1, 'keep directed even'), (0.2, 'cacheblend token even')):
        served = [asking.ask(one, named[key]) for one in asked]
        assert batch.ask(named[key]).right.tolist() == [reply.right for reply in served]


def test_shares_are_whole_records():
    assert all(round(s * n) == pytest.approx(s * n) for s in SHARES for n in SIZES)


def test_ways_of_one_share_compute_as_many_tokens(untaught):
    batch = ProblemBatch(untaught, list(problems(2, 5, 10, 1)))
    for share in SHARES:
        some = {n: r for (s, n), r in all_ways(untaught) if s == share and n.endswith(' even')}
        computed = {name: float(batch.ask(reuse).computed.mean()) for name, reuse in some.items()}
        assert max(computed.values()) - min(computed.values()) < 1 / (10 * TOKENS), computed


def written(model, folder: Path) -> Path:
    path = folder / 'records.safetensors'
    save_judge(path, model.state_dict(), RECORDS, {})
    return path


def test_a_judge_that_knows_nothing_is_refused(untaught, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, 'GATE', dict(problems=2, seed=1))
    args = Namespace(judge=written(untaught, tmp_path), problems=1, records=[10], json=True)
    with pytest.raises(BenchmarkError, match='cannot tell ways of reuse apart'):
        bench.run(args)


def test_the_command_returns_figures_and_prints_tables(untaught, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(report, 'OUT', tmp_path)
    holds = Gate(1.0, 0.8, 1, {0: (1.0, 1.0)})
    monkeypatch.setattr(bench, 'gate', lambda model, problems, seed: holds)
    few = [one for one in all_ways(untaught) if not one[0][1].endswith(('restart', 'gradual'))]
    monkeypatch.setattr(bench, 'all_ways', lambda model: few)
    main(['--judge', str(written(untaught, tmp_path)), '--problems', '1', '--records', '10'])
    said = capsys.readouterr().out
    result = json.loads(said.splitlines()[-1])
    assert {row['n'] for row in result['rates']} == {4} and set(result['chosen']) == {*FAMILIES}
    assert {'0 links', '3 links'} <= {*result['rates'][0]} and 'right answers' in said
