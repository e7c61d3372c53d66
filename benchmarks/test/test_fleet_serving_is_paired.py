"""Benchmark fleet.serving runs all ways on the same scenes and compares paired results."""

from dataclasses import replace

import pytest

from benchmarks.fleet.serving import figures, measure
from benchmarks.fleet.serving.measure import PAIRS, WAYS, Plan, cases, order, settings
from embodied_kv.control.execution_horizon import Confidence, parse
from embodied_kv.demo.sim.tasks import FAMILIES
from embodied_kv.fleet.profile import Profile


def test_tasks_come_in_blocks_of_all_families():
    found = cases(12)
    assert len(set(found)) == 12 and found == cases(16)[:12]
    for first in range(0, 12, len(FAMILIES)):
        block = found[first : first + len(FAMILIES)]
        assert {case.family for case in block} == set(FAMILIES)
        assert len({case.scene_seed for case in block}) == 1


def test_ways_differ_in_scheduler_and_horizon_alone():
    made = [order(4, 12, *way, Profile('e', (1,), (0.1,), 9)) for way in WAYS.values()]
    for each in made:
        assert each.tasks == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]
        assert each.starts == made[0].starts and all(0 <= s <= 1 for s in each.starts)
        habits = replace(each.habits, execution_horizon=made[0].habits.execution_horizon)
        assert replace(each, scheduler=made[0].scheduler, habits=habits) == made[0]
    assert len({(m.scheduler, m.habits.execution_horizon) for m in made}) == 4


def test_a_robot_asks_before_the_least_horizon_is_over():
    policies = [parse(horizon) for _, horizon in WAYS.values()]
    least = [p.minimum if isinstance(p, Confidence) else p.actions for p in policies]
    assert min(least) > measure.REQUEST_AHEAD


def test_one_robot_alone_meets_the_scenes_of_all_fleets():
    plan = Plan((1, 2, 8, 32), tasks=20, each=2)
    assert [plan.count(n) for n in (2, 8, 32)] == [20, 24, 64]
    runs = settings(plan)
    assert runs[0][:2] == (1, 64)
    assert [way for robots, _, way in runs if robots == 8] == list(WAYS)


def test_the_engine_saturates_where_robots_ask_for_its_capacity():
    found = measure.physics(Profile('e', (1, 2, 4), (0.1, 0.1, 0.2), 9), (5, 10), 6, 0.1)
    assert (found['saturation'], found['capacity']) == (2, pytest.approx(20))
    assert found['saturates_at'] == pytest.approx(10)
    assert found['asked'] == {5: pytest.approx(10), 10: pytest.approx(20)}


def run(robots, way, seconds, failed=()):
    return dict(
        robots=robots, way=way, batches=2, served=4, charged=1.0, computed=2.0, span=10.0,
        decisions=[(1, 1e-6), (3, 3e-6)],
        tasks=[
            dict(task=i, success=i not in failed, seconds=s, still=0.5, horizons=[3, 5])
            for i, s in enumerate(seconds)
        ],
    )  # fmt: skip


def test_differences_are_of_the_same_scenes():
    runs = [
        run(1, 'fifo', [1.0, 2.0, 3.0]),
        run(1, 'kairos, dynamic', [1.0, 1.0, 1.0]),
        run(2, 'fifo', [2.0, 4.0], failed=[1]),
        run(2, 'kairos', [1.0, 3.0], failed=[0]),
        run(2, 'kairos, dynamic', [2.0, 2.0]),
    ]
    rows = {(row['robots'], row['way']): row for row in figures.rows(runs, measure.ALONE)}
    assert rows[2, 'kairos']['of_alone'] == pytest.approx(4 / 3)  # of the two tasks that succeeded
    assert rows[2, 'kairos, dynamic']['of_alone'] == pytest.approx(2)
    row = rows[2, 'fifo']
    assert (row['horizon'], row['batch'], row['busy']) == (4, 2, 0.1)
    assert row['success']['k'] == 1 and row['decision']['median'] == pytest.approx(2)
    assert row['done'] == pytest.approx(3600 * 2 * 0.5 / 3.0)  # half of tasks of 3 s, two robots
    compared = {(p['robots'], p['way'], p['against']): p for p in figures.pairs(runs, PAIRS)}
    assert set(compared) == {
        (1, 'kairos, dynamic', 'fifo'),
        (2, 'kairos', 'fifo'),
        (2, 'kairos, dynamic', 'kairos'),
        (2, 'kairos, dynamic', 'fifo'),
    }
    pair = compared[2, 'kairos', 'fifo']
    assert (pair['difference'], pair['low'], pair['high']) == (-1, -1, -1)
    assert pair['share'] == pytest.approx(-1 / 3)
    assert (pair['only_first'], pair['only_second']) == (1, 1)


def test_an_interval_holds_the_mean_and_narrows():
    few, many = figures.interval([1.0, 3.0] * 8), figures.interval([1.0, 3.0] * 200)
    assert few[0] < many[0] < 2 < many[1] < few[1]
