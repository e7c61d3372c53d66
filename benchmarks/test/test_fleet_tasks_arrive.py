"""Benchmark fleet.serving with arriving tasks: the same tasks for every way, in small batches."""

import json
from dataclasses import replace

import pytest

from benchmarks.fleet import runs
from benchmarks.fleet.serving import __main__ as serving
from benchmarks.fleet.serving import open_fleet
from benchmarks.fleet.serving.open_fleet import AHEAD, DT, LARGEST, WAYS, Rounds, batches, order
from benchmarks.fleet.workload import Job, draw, read
from embodied_kv.fleet.profile import Profile

COMMON, WORKLOADS = read()
JOBS = [Job((5, 5), DT, 1, 1), Job((50,), DT, 1, 1), Job((7,) * 3, DT, 1, 1)]


def test_tasks_go_round_the_robots_with_their_horizons():
    made = order(JOBS, [0.5, 1.5, 2.5], 2, Profile('e', (1,), (0.1,), 9))
    assert made.tasks == [[0, 2], [1]] and made.arrivals == [[0.5, 2.5], [1.5]]
    assert made.horizons == {0: 'static:5', 1: 'static:50', 2: 'static:7'}


@pytest.mark.parametrize('way', WAYS)
def test_a_way_is_the_order_of_the_simulation_by_its_name(way):
    made = order(JOBS, [0.5, 1.5, 2.5], 2, Profile('e', (1,), (0.1,), 9))
    found, named = replace(made, **WAYS[way]).scheduling.order(str), runs.POLICIES[way]
    assert type(found) is type(named) and vars(found) == vars(named)


def test_a_task_is_done_when_its_rounds_have_been_executed():
    world = Rounds(JOBS)
    world.begin(0, 0)
    world.follow(0, [None] * 5, 10)
    assert not any(world.advance(0, 1000))
    world.follow(0, [None] * 5, 20)
    assert not any(world.advance(0, 34)) and world.advance(0, 35) == (True, False)


@pytest.mark.parametrize('workload', WORKLOADS, ids=lambda workload: workload.name)
def test_batches_are_small_and_robots_ask_before_their_least_horizon(workload):
    found = batches(workload.profile)
    assert max(found.sizes) == LARGEST and found.latency(2) == workload.profile.latency(2)
    jobs, _ = draw(workload, replace(COMMON, period=DT), 100, seed=1)
    assert min(job.horizons[0] for job in jobs) > AHEAD


def test_the_robots_have_chunks_of_fifty_actions():
    with open_fleet.engine() as local:
        model = local.engine.policy.config
    assert (model.chunk_size, model.action_dt) == (50, DT)


@pytest.fixture
def orders(monkeypatch):
    """Record the orders of fleets in which every task takes one second."""
    given = []

    def run(local, order, world, on_end):
        given.append(order)
        tasks = [dict(task=i, success=True, seconds=1.0) for i in range(len(order.horizons))]
        sums = dict(batches=1, served=1, charged=1.0, span=1.0, decisions=[(1, 1e-6)])
        return dict(tasks=tasks) | sums

    monkeypatch.setattr(open_fleet, 'run', run)
    return given


def test_only_the_ways_that_are_asked_for_are_run(orders, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(serving.report, 'OUT', tmp_path)
    serving.main('--workload LIBERO/Pi0.5 --robots 4 --ways kairos fifo --json'.split())
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row['way'] for row in found['rows']] == [*found['ways']] == ['kairos', 'fifo']
    assert [(pair['way'], pair['against']) for pair in found['pairs']] == [('kairos', 'fifo')]
    asked = [order.scheduler for order in orders]
    assert asked == ['kairos', 'fifo'] * open_fleet.DRAWS


def test_every_way_serves_the_same_draws(orders):
    found = open_fleet.measure('LIBERO/Pi0.5', 4, ['kairos', 'fifo'], 2, True)
    first, same, second, again = (
        (order.arrivals, order.horizons, order.tasks) for order in orders
    )
    assert first == same != second == again
    assert all([each['seed'] for each in row['seeds']] == [7, 8] for row in found['rows'])
    (pair,) = found['pairs']
    assert pair['average'] == dict(saved=0.0, low=0.0, high=0.0)


@pytest.mark.parametrize(
    ('arguments', 'reason'),
    [
        ('--workload odd', "no workload 'odd'; there are: LIBERO/SmolVLA"),
        ('--workload LIBERO/Pi0.5 --ways odd', "invalid choice: 'odd'"),
        ('--ways fifo', '--ways and --draws are of an open fleet: they need --workload'),
        ('--workload LIBERO/Pi0.5 --draws 0', '--draws are 1 to 10'),
        ('--workload LIBERO/Pi0.5 --draws 11', '--draws are 1 to 10'),
    ],
)
def test_what_cannot_be_asked_for_is_refused(capsys, arguments, reason):
    with pytest.raises(SystemExit):
        serving.main(arguments.split())
    assert reason in capsys.readouterr().err
