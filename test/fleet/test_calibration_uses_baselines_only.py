"""The committed calibration is the result of its rule, which uses FIFO and Autellix only."""

import pytest
import yaml

from benchmarks.fleet import calibrate
from benchmarks.fleet.calibrate import GATE, PLAN, SWEEP, choose, passes
from benchmarks.fleet.paper import TABLE
from benchmarks.fleet.runs import PLANS, Bench, Plan
from benchmarks.fleet.workload import CALIBRATION, read
from embodied_kv.fleet.schedulers import Fifo, LeastAttained

COMMON, WORKLOADS = read()
FOUND = yaml.safe_load(CALIBRATION.read_text())['workloads']


def test_the_papers_ratios_are_the_gate():
    ratios = [round(calibrate.papers(name), 2) for name in TABLE['fifo']]
    assert (min(ratios), max(ratios)) == GATE


@pytest.mark.parametrize(
    ('ratios', 'paper', 'chosen', 'valid'),
    [
        ((1.2, 1.08, 1.03, 0.9), 1.03, 1.03, True),
        ((1.2, 1.08, 1.03, 0.9), 1.09, 1.08, True),
        ((1.2, 1.11, 1.0, 0.9), 1.09, 1.11, False),
        ((1.1, 1.016, 1.0), 1.07, 1.016, True),  # in the gate when rounded as the paper's
    ],
)
def test_the_nearest_of_those_that_pass_is_chosen(ratios, paper, chosen, valid):
    rows = [dict(cv=0.1 * (i + 1), ratio=ratio) for i, ratio in enumerate(ratios)]
    found = choose(rows, paper)
    assert (found['ratio'], found['valid']) == (chosen, valid)


def test_what_is_committed_says_whether_it_passes():
    assert CALIBRATION.read_text() == calibrate.text(FOUND)
    assert set(FOUND) == {workload.name for workload in WORKLOADS}
    for name, found in FOUND.items():
        assert found['valid'] == passes(found['ratio']), name
        assert found['cv'] in SWEEP and found['peak'] > 0


def test_no_seed_is_used_twice():
    assert not set(PLAN.seeds) & {seed for plan in PLANS.values() for seed in plan.seeds}


def test_no_other_scheduler_is_looked_at(monkeypatch):
    seen, mean = set(), Bench.mean

    def watched(bench, subject, policy, *rest, **named):
        seen.add(type(policy))
        return mean(bench, subject, policy, *rest, **named)

    monkeypatch.setattr(Bench, 'mean', watched)
    monkeypatch.setattr(calibrate, 'SWEEP', (0.1, 1.0))
    bench = Bench(Plan(tasks=20, span=1.0, seeds=(1,), halvings=2), lambda: None)
    peak, rows = calibrate.sweep(bench, WORKLOADS[7], COMMON)
    assert seen == {Fifo, LeastAttained} and peak > 0 and [row['cv'] for row in rows] == [0.1, 1.0]
