"""The experiments of the fleet's benchmark: what is simulated, and with which settings.

Every figure is a mean over seeds; a seed draws tasks and moments of arrival, the same for every
scheduler.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.fleet.simulate import Simulation
from benchmarks.fleet.subject import Subject
from benchmarks.fleet.workload import poisson
from embodied_kv.fleet.engines import EngineState, Link
from embodied_kv.fleet.schedulers import BUCKET_ORDERS, Fifo, Kairos, LeastAttained, Scheduler

PENDING = 'kairos, pending'  # the wait that is not over yet counts, too
POLICIES: dict[str, Scheduler] = {
    'fifo': Fifo(),
    'autellix': LeastAttained(),
    'kairos': Kairos(),
    PENDING: Kairos(pending=True),
}
HORIZONS = ('static', 'dynamic')
WAYS = [('static', name) for name in POLICIES]
WAYS += [('dynamic', name) for name in POLICIES if name != PENDING]
UNLOADED = 1e-3  # tasks/s: tasks hardly ever overlap
PEAK = 3.0  # times the unloaded average
HIGHEST = 3.0  # times the peak: the highest rate, where we read the paper's Table 2; often a burst
EACH = 3  # minimum tasks of a robot of a closed fleet: with fewer it is a burst
SHORT = 2  # rounds; with so few, a wait between rounds carries little information
LIMIT = 8.0  # times the capacity: upper limit of a peak; few tasks may never reach it


@dataclass(frozen=True)
class Plan:
    """The amount of simulation.

    tasks: of each run, at least; more if the edge serves more in `span` s, so that the load is one
    for a fast engine, too. seeds: of tasks and arrivals; few: of all but the rates. shares: of the
    peak rate. robots: of closed fleets. halvings: of the search for the peak. overload: shares of
    the peak with a cloud. micro: workloads of the small sweeps. latencies, bandwidths: of the WAN,
    s and bytes/s.
    """

    tasks: int
    span: float
    seeds: tuple[int, ...]
    few: tuple[int, ...] = ()
    halvings: int = 8
    shares: tuple[float, ...] = ()
    robots: tuple[int, ...] = ()
    overload: tuple[float, ...] = ()
    micro: tuple[str, ...] = ()
    buckets: tuple[int, ...] = (1, 2, 5, 10, 20, 10**9)
    aging: tuple[int, ...] = (2, 5, 10, 20, 50, 100, 500)
    latencies: tuple[float, ...] = (0.01, 0.025, 0.05, 0.1, 0.2)
    bandwidths: tuple[float, ...] = (1.25e6, 12.5e6, 125e6, 1250e6)


MICRO = ('LIBERO/Pi0.5', 'Isaac/GR00T N1.5', 'RoboTwin/Fast-WAM')
PLANS = {
    'full': Plan(
        tasks=100, span=40.0, seeds=(1, 2, 3, 4), few=(1, 2),
        shares=(0.5, 1.0, 2.0, HIGHEST),
        robots=(10, 50, 100), overload=(1.0, 2.0, HIGHEST), micro=MICRO,
    ),
    'quick': Plan(
        tasks=50, span=15.0, seeds=(1, 2), few=(1,), shares=(0.5, HIGHEST), robots=(10, 50),
        overload=(HIGHEST,), micro=MICRO[:1],
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Bench:
    """A plan, and a function that is called after every simulation."""

    plan: Plan
    tick: Callable[[], object]

    def mean(
        self,
        subject: Subject,
        policy: Scheduler,
        horizon: str,
        rate: float | None = None,
        robots: int | None = None,
        where: str = 'edge',
        wan: Link | None = None,
        seeds: Sequence[int] = (),
    ) -> dict[str, object]:
        """Return P25, average and P95 of task latency, s, and the cloud's share of rounds.

        seeds: those to run, if not all of the plan. The result has the same figures of each seed,
        too.
        """
        found, tasks = [], max(self.tasks(subject), EACH * (robots or 0))
        for seed in seeds or self.plan.seeds:
            jobs = subject.jobs(tasks, seed)[HORIZONS.index(horizon)]
            engines = _engines(subject, where, wan)
            simulation = Simulation(jobs, policy, engines, subject.common.wifi, subject.lead)
            if robots:
                result = simulation.fleet(robots)
            else:
                result = simulation.arrive(
                    poisson(rate, len(jobs), np.random.default_rng(seed + 1000))
                )
            found.append(result.summary() | dict(cloud=result.cloud))
            self.tick()
        means = {key: statistics.fmean(row[key] for row in found) for key in found[0]}
        return means | dict(seeds=found)

    def short(self, subject: Subject, peak: float) -> list[dict]:
        """Return the share of tasks of at most SHORT rounds, and their mean by scheduler.

        At the highest rate. There is no row if no task is so short.
        """
        tasks, found = self.tasks(subject), {name: [] for name in POLICIES}
        for seed in self.plan.few:
            jobs = subject.jobs(tasks, seed)[0]
            few = np.array([len(job.horizons) <= SHORT for job in jobs])
            moments = poisson(peak * HIGHEST, tasks, np.random.default_rng(seed + 1000))
            for name, policy in POLICIES.items():
                engines, common = _engines(subject, 'edge', None), subject.common
                simulation = Simulation(jobs, policy, engines, common.wifi, subject.lead)
                found[name] += simulation.arrive(moments).latency[few].tolist()
                self.tick()
        if not found['fifo']:
            return []
        share = len(found['fifo']) / tasks / len(self.plan.few)
        means = {name: statistics.fmean(values) for name, values in found.items()}
        return [dict(workload=subject.name, share=share) | means]

    def load(self, subject: Subject, peak: float) -> dict:
        """Return how the highest rate relates to the engine: far above its capacity, a burst.

        capacity, rate: tasks/s; over: the rate over the capacity; arrive: s in which all tasks
        come; work: s that a busy engine takes for them.
        """
        capacity, rate, tasks = subject.capacity, HIGHEST * peak, self.tasks(subject)
        times = dict(over=rate / capacity, arrive=tasks / rate, work=tasks / capacity)
        return dict(capacity=capacity, rate=rate, tasks=tasks) | times

    def tasks(self, subject: Subject) -> int:
        """Return the tasks of a run of open arrivals."""
        return max(self.plan.tasks, round(self.plan.span * subject.capacity))

    def peak(self, subject: Subject) -> dict:
        """Find the rate at which FIFO's average, static horizons, is PEAK times the unloaded."""
        unloaded = self.mean(subject, Fifo(), 'static', UNLOADED)['average']
        capacity = subject.capacity
        low, high = 0.1 * capacity, LIMIT * capacity
        for _ in range(self.plan.halvings):
            rate = (low * high) ** 0.5
            if self.mean(subject, Fifo(), 'static', rate)['average'] > PEAK * unloaded:
                high = rate
            else:
                low = rate
        reached = high < LIMIT * capacity
        return dict(
            workload=subject.name,
            unloaded=unloaded,
            capacity=capacity,
            peak=high,
            reached=reached,
        )

    def online(self, subject: Subject, peak: float) -> list[dict]:
        """Run every way, by share of the peak."""
        return [
            dict(workload=subject.name, share=share, horizon=horizon, scheduler=name)
            | self.mean(subject, POLICIES[name], horizon, peak * share)
            for share in self.plan.shares
            for horizon, name in WAYS
        ]

    def fleets(self, subject: Subject) -> list[dict]:
        """Run closed fleets: the system of the paper against its baselines, and equal horizons."""
        few = self.plan.few
        ways = [('static', name) for name in POLICIES] + [('dynamic', 'kairos')]
        return [
            dict(workload=subject.name, robots=robots, horizon=horizon, scheduler=name)
            | self.mean(subject, POLICIES[name], horizon, robots=robots, seeds=few)
            for robots in self.plan.robots
            for horizon, name in ways
        ]

    def places(self, subject: Subject, peak: float) -> list[dict]:
        """Run edge, cloud and both, with Kairos and dynamic horizons."""
        few = self.plan.few
        return [
            dict(workload=subject.name, share=share, where=where)
            | self.mean(subject, Kairos(), 'dynamic', peak * share, where=where, seeds=few)
            for share in self.plan.overload
            for where in ('edge', 'cloud', 'hybrid')
        ]

    def settings(self, subject: Subject, peak: float) -> list[dict]:
        """Run buckets, orders within one, and aging: at the peak, static horizons."""
        few = self.plan.few
        variants = [('buckets', n) for n in self.plan.buckets]
        variants += [('bucket_order', order) for order in BUCKET_ORDERS]
        variants += [('aging', n) for n in self.plan.aging]
        return [
            dict(workload=subject.name, setting=field, value=value)
            | self.mean(subject, replace(Kairos(), **{field: value}), 'static', peak, seeds=few)
            for field, value in variants
        ]

    def networks(self, subject: Subject, peak: float) -> list[dict]:
        """Run the WAN's latencies and bandwidths: hybrid, at the highest overload."""
        few = self.plan.few
        rate, wan = peak * self.plan.overload[-1], subject.common.wan
        variants = [('latency', s, replace(wan, latency=s)) for s in self.plan.latencies]
        variants += [('bandwidth', b, replace(wan, up=b, down=b)) for b in self.plan.bandwidths]
        return [
            dict(workload=subject.name, setting=setting, value=value)
            | self.mean(subject, Kairos(), 'dynamic', rate, where='hybrid', wan=link, seeds=few)
            for setting, value, link in variants
        ]


def _engines(subject: Subject, where: str, wan: Link | None) -> list[EngineState]:
    cloud = subject.profile.faster(subject.common.cloud_speedup, 'cloud')
    engines = dict(
        edge=EngineState('edge', subject.profile),
        cloud=EngineState('cloud', cloud, wan or subject.common.wan),
    )
    return list(engines.values()) if where == 'hybrid' else [engines[where]]
