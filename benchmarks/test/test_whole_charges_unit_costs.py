"""Work is charged by a table of unit costs, and finished groups are not run again."""

from types import SimpleNamespace

import pytest
from whole_cases import COSTS, SETTINGS

from benchmarks.common.command import BenchmarkError
from benchmarks.whole.costs import Meter, TableCosts, at, load_costs
from benchmarks.whole.measure import Results, conditions
from benchmarks.whole.settings import load_settings


def test_costs_are_interpolated_and_grow_in_proportion_above_the_largest_size():
    sizes = {1: 1.0, 3: 2.0}
    assert [at(sizes, n) for n in (1, 2, 3, 6)] == [1.0, 1.5, 2.0, 4.0]


def test_a_decode_step_lies_between_whole_and_compressed_by_the_share_of_copies():
    steps = [COSTS.policy.decode_step(8, share) for share in (0.0, 0.5, 1.0)]
    assert steps == pytest.approx([0.004, 0.003, 0.002])


@pytest.mark.parametrize('heavy', [False, True])
def test_the_table_has_the_costs_of_all_modes(heavy):
    settings = load_settings(heavy=heavy)
    costs = load_costs(settings.policy, settings.planner)
    assert costs.policy.chunk(1, 4) > 0 and costs.planner.layer_token > 0
    with pytest.raises(ValueError, match='--measure-costs'):
        load_costs(settings.policy, 'unknown')


class FakeEngine:
    """An engine with given streams, whose next unit of language work is for all or for one."""

    config = SimpleNamespace(euler_steps=4)
    compression = SimpleNamespace(decide=lambda: SimpleNamespace(scores_frame=True))

    def __init__(self, is_alone, *streams):
        self._next = (
            [
                SimpleNamespace(is_new=new, lease=SimpleNamespace(is_copy=copy))
                for new, copy in streams
            ],
            is_alone,
        )

    def next_batch(self):
        return self._next


@pytest.mark.parametrize(
    ('kind', 'engine', 'cost'),
    [
        ('prefill', FakeEngine(False), 0.004),
        ('denoise_step', FakeEngine(False), 4 * 0.001),
        ('begin', FakeEngine(True, (True, False)), 0.001),
        ('begin', FakeEngine(True, (False, False)), 0.002),  # the choice of a copy
        ('decode', FakeEngine(False, (False, True), (False, True)), 0.001),
    ],
)
def test_the_meter_is_charged_what_the_engine_reports(kind, engine, cost):
    meter = Meter()
    costs = TableCosts(COSTS.policy, meter, engine)
    costs.begin()
    costs.observe(kind, 123.0, 1)
    assert meter() == pytest.approx(cost)
    costs.observe('the same unit by another name', 123.0, 1)
    assert meter() == pytest.approx(cost)


def test_a_plan_is_charged_by_layers_in_blocks_and_with_its_loads():
    plan = SimpleNamespace(computed=(100, 40), loaded=(0, 60))
    steps = list(COSTS.planner.steps(plan, [10], answer=2, block=64))
    ms = [round(1e3 * step, 3) for step in steps]
    assert ms == [0.1, 0.1, 1.0, 0.64, 0.36, 0.4, 0.3, 2.0, 2.0]


def test_a_later_run_continues_a_file_of_results(tmp_path):
    path, run = tmp_path / 'found.jsonl', dict(way='all', group=0, peak=1)
    Results(path, conditions(SETTINGS, COSTS)).add(run)
    again = Results(path, conditions(SETTINGS, COSTS))
    assert again.runs == [run]
    assert ('all', 0) in again and ('all', 1) not in again
    with pytest.raises(BenchmarkError, match='name another file'):
        Results(path, conditions(load_settings(heavy=True), COSTS))
