"""Simulations equal results computed by hand, and do not depend on clock offsets."""

import numpy as np
import pytest
from fleet_cases import ONE, TWO, job

from benchmarks.fleet.simulate import Simulation
from benchmarks.fleet.workload import Job, draw, poisson, read
from embodied_kv.fleet.engines import EngineState, Link
from embodied_kv.fleet.schedulers import SCHEDULERS, Kairos, scheduler

COMMON, WORKLOADS = read()


def run(jobs, policy=None, engines=None, **other):
    return Simulation(jobs, policy or Kairos(), engines or [EngineState('one', ONE)], **other)


def test_a_robot_alone_overlaps_generation_and_execution():
    """An execution of 3 s hides the next generation of 1 s; the robot waits only for the first."""
    found = run([job(3.0, 4)]).arrive([5.0])
    assert found.latency[0] == pytest.approx(1 + 4 * 3)
    assert found.waited[0] == pytest.approx(0, abs=1e-9)


def test_a_robot_alone_that_is_generation_dominated():
    found = run([job(0.25, 4)]).arrive([0.0])
    assert found.latency[0] == pytest.approx(4 * 1 + 0.25)


def test_synchronous_inference_adds_both():
    assert run([job(3.0, 4)], lead=0.0).arrive([0.0]).latency[0] == pytest.approx(4 * (1 + 3))


def test_the_robots_own_network_counts():
    found = run([Job((1,), 1.0, 100, 50)], wifi=Link(0.5, 100.0, 100.0)).arrive([0.0])
    assert found.latency[0] == pytest.approx((0.5 + 1) + 1 + (0.5 + 0.5) + 1)


def test_a_cloud_answers_after_its_network():
    cloud = EngineState('cloud', ONE, Link(0.5, 1e12, 1e12))
    found = run([job(1.0, 1)], engines=[cloud]).arrive([0.0])
    assert found.latency[0] == pytest.approx(0.5 + 1 + 0.5 + 1) and found.cloud == 1


def test_a_batch_serves_two_at_once():
    found = run([job(1.0, 1)] * 3, engines=[EngineState('two', TWO)]).arrive([0.0, 0.0, 0.0])
    assert sorted(found.latency) == pytest.approx([1 + 1, 2.2 + 1, 2.2 + 1])
    assert (found.rounds, found.batches) == (3, 2)


def test_a_closed_fleet_takes_one_job_after_the_other():
    found = run([job(3.0, 1)] * 4).fleet(2)
    assert found.latency == pytest.approx([4, 5, 4, 4])


@pytest.mark.parametrize('name', SCHEDULERS)
def test_every_job_is_served_and_no_faster_than_alone(name):
    workload = WORKLOADS[2]
    jobs, _ = draw(workload, COMMON, 60, seed=1)
    engines = [EngineState('edge', workload.profile)]
    alone = run(jobs, engines=engines, wifi=COMMON.wifi).arrive(np.arange(60) * 1e3)
    engines = [EngineState('edge', workload.profile)]
    moments = poisson(2.0, 60, np.random.default_rng(0))
    found = run(jobs, scheduler(name), engines, wifi=COMMON.wifi).arrive(moments)
    assert (found.latency >= alone.latency - 1e-9).all()
    assert found.rounds == alone.rounds == sum(len(job.horizons) for job in jobs)
    assert found.latency.sum() > 1.2 * alone.latency.sum()


@pytest.mark.parametrize('offsets', [(5.0,), (-5.0, 5.0, 0.0), (1e5, -3.0)])
def test_clock_skew_between_robot_and_server_changes_nothing(offsets):
    workload = WORKLOADS[2]
    jobs, _ = draw(workload, COMMON, 60, seed=1)
    moments = poisson(2.0, 60, np.random.default_rng(0))

    def latency(offsets):
        engines = [EngineState('edge', workload.profile)]
        return run(jobs, engines=engines, offsets=offsets).arrive(moments).latency

    assert latency(offsets) == pytest.approx(latency((0.0,)))
