"""Benchmark fleet.serving with tasks that arrive: the same for every way, in small batches."""

from dataclasses import replace

import pytest

from embodied_kv.bench.fleet.serving import __main__ as serving
from embodied_kv.bench.fleet.serving import open_fleet
from embodied_kv.bench.fleet.serving.open_fleet import AHEAD, DT, LARGEST, Rounds, batches, order
from embodied_kv.fleet.trace import Job
from embodied_kv.fleet.workload import draw, read
from embodied_kv.robots.embodiment import Embodiment

COMMON, WORKLOADS = read()
JOBS = [Job((5, 5), DT, 1, 1), Job((50,), DT, 1, 1), Job((7,) * 3, DT, 1, 1)]


def test_tasks_go_round_the_robots_with_their_horizons(tmp_path):
    made = order(JOBS, [0.5, 1.5, 2.5], 2, tmp_path / 'robot.yaml', tmp_path / 'profile.yaml')
    assert made['tasks'] == [[0, 2], [1]] and made['arrivals'] == [[0.5, 2.5], [1.5]]
    assert made['horizons'] == {0: 'static:5', 1: 'static:50', 2: 'static:7'}


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
    assert AHEAD < min(job.horizons[0] for job in jobs)


def test_the_robots_have_chunks_of_fifty_actions(tmp_path):
    contract = Embodiment.load(str(open_fleet.contract(tmp_path / 'robot.yaml'))).contract
    assert (contract.chunk_size, contract.dt) == (50, pytest.approx(DT))


def test_an_unknown_workload_is_refused(capsys):
    with pytest.raises(SystemExit):
        serving.main(['--workload', 'odd'])
    assert "no workload 'odd'; there are: LIBERO/SmolVLA" in capsys.readouterr().err
