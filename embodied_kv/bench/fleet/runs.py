"""The experiments of the fleet's benchmark: what is simulated, and with which settings.

Every figure is a mean over seeds; a seed draws tasks and moments of arrival, the same for every
scheduler.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from embodied_kv.bench.fleet.paper import SYSTEMS, TABLE
from embodied_kv.fleet import trace
from embodied_kv.fleet.engines import EngineState, Link
from embodied_kv.fleet.policies import BUCKET_ORDERS, Fifo, Kairos, scheduler
from embodied_kv.fleet.profile import Profile
from embodied_kv.fleet.scheduler import Scheduler, Waiting
from embodied_kv.fleet.simulate import Simulation
from embodied_kv.fleet.trace import Job, poisson
from embodied_kv.fleet.workload import Common, Workload, draw

SCHEDULERS = ('fifo', 'autellix', 'shortest', 'kairos')
HORIZONS = ('static', 'dynamic')
UNLOADED = 1e-3  # tasks/s: nobody meets anybody
PEAK = 3.0  # times the unloaded average
HIGHEST = 8.0  # times the capacity: a peak is looked for below; few tasks may never reach it
FIGURES = ('p25', 'average', 'p95')


@dataclass(frozen=True)
class Plan:
    """How much is simulated.

    tasks: of each run. seeds: of tasks and arrivals. shares: of the peak rate. robots: of closed
    fleets. halvings: of the search for the peak. overload: shares of the peak with a cloud.
    micro: workloads of the small sweeps. latencies, bandwidths: of the WAN, s and bytes/s.
    """

    tasks: int
    seeds: tuple[int, ...]
    shares: tuple[float, ...]
    robots: tuple[int, ...]
    halvings: int
    overload: tuple[float, ...]
    micro: tuple[str, ...]
    buckets: tuple[int, ...] = (1, 2, 5, 10, 20, 10**9)
    aging: tuple[int, ...] = (2, 5, 10, 20, 50, 100, 500)
    latencies: tuple[float, ...] = (0.01, 0.025, 0.05, 0.1, 0.2)
    bandwidths: tuple[float, ...] = (1.25e6, 12.5e6, 125e6, 1250e6)


MICRO = ('LIBERO/Pi0.5', 'Isaac/GR00T N1.5', 'RoboTwin/Fast-WAM')
PLANS = {
    'full': Plan(
        tasks=300, seeds=(1, 2, 3), shares=(0.25, 0.5, 0.75, 1.0, 1.25), halvings=8,
        robots=(10, 25, 50, 75, 100), overload=(1.0, 1.5, 2.0), micro=MICRO,
    ),
    'quick': Plan(
        tasks=140, seeds=(1,), shares=(0.5, 1.0), halvings=6, robots=(10, 50, 100),
        overload=(1.5,), micro=MICRO[:1],
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """What is served: jobs by seed, with static and with dynamic horizons, and an engine."""

    name: str
    profile: Profile
    common: Common
    jobs: Callable[[int, int], tuple[list[Job], list[Job]]]

    @property
    def lead(self) -> float:
        """As recorded at the edge, wherever a round is served (section 5.1)."""
        return self.profile.latency(1) + 2 * self.common.wifi.latency

    @classmethod
    def of(cls, workload: Workload, common: Common) -> Subject:
        kept = {}

        def jobs(count: int, seed: int) -> tuple[list[Job], list[Job]]:
            if (count, seed) not in kept:
                kept[count, seed] = draw(workload, common, count, seed)
            return kept[count, seed]

        return cls(workload.name, workload.profile, common, jobs)

    @classmethod
    def recorded(cls, path: str, profile: Profile, common: Common) -> Subject:
        """Of a trace; its horizons are what they were."""
        whole = trace.jobs(*trace.read(path))

        def jobs(count: int, seed: int) -> tuple[list[Job], list[Job]]:
            same = trace.sample(whole, count, np.random.default_rng(seed))
            return same, same

        return cls(path, profile, common, jobs)


@dataclass(frozen=True)
class Bench:
    """A plan, and what hears of every simulation that is over."""

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
    ) -> dict[str, float]:
        """P25, average and P95 of task latency, s, and the cloud's share of rounds."""
        found = []
        for seed in self.plan.seeds:
            jobs = subject.jobs(self.plan.tasks, seed)[HORIZONS.index(horizon)]
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
        return {key: statistics.fmean(row[key] for row in found) for key in found[0]}

    def peak(self, subject: Subject) -> dict:
        """The rate at which FIFO's average, static horizons, is PEAK times the unloaded one."""
        unloaded = self.mean(subject, Fifo(), 'static', UNLOADED)['average']
        rounds = statistics.fmean(
            len(job.horizons) for job in subject.jobs(self.plan.tasks, self.plan.seeds[0])[0]
        )
        full = subject.profile.saturation
        capacity = full / subject.profile.latency(full) / rounds
        low, high = 0.1 * capacity, HIGHEST * capacity
        for _ in range(self.plan.halvings):
            rate = (low * high) ** 0.5
            if self.mean(subject, Fifo(), 'static', rate)['average'] > PEAK * unloaded:
                high = rate
            else:
                low = rate
        reached = high < HIGHEST * capacity
        return dict(
            workload=subject.name,
            unloaded=unloaded,
            capacity=capacity,
            peak=high,
            reached=reached,
        )

    def online(self, subject: Subject, peak: float) -> list[dict]:
        """Every scheduler with both horizons, by share of the peak."""
        return [
            dict(workload=subject.name, share=share, horizon=horizon, scheduler=name)
            | self.mean(subject, scheduler(name), horizon, peak * share)
            for share in self.plan.shares
            for horizon in HORIZONS
            for name in SCHEDULERS
        ]

    def fleets(self, subject: Subject) -> list[dict]:
        """Closed fleets: the system of the paper against its baselines, and equal horizons."""
        return [
            dict(workload=subject.name, robots=robots, horizon=horizon, scheduler=name)
            | self.mean(subject, scheduler(name), horizon, robots=robots)
            for robots in self.plan.robots
            for horizon, names in (
                ('static', ('fifo', 'autellix', 'kairos')),
                ('dynamic', ('kairos',)),
            )
            for name in names
        ]

    def places(self, subject: Subject, peak: float) -> list[dict]:
        """Edge, cloud and both, with Kairos and dynamic horizons."""
        return [
            dict(workload=subject.name, share=share, where=where)
            | self.mean(subject, Kairos(), 'dynamic', peak * share, where=where)
            for share in self.plan.overload
            for where in ('edge', 'cloud', 'hybrid')
        ]

    def settings(self, subject: Subject, peak: float) -> list[dict]:
        """Buckets, order within one, aging: at the peak, static horizons."""
        variants = [('buckets', n) for n in self.plan.buckets]
        variants += [('bucket_order', order) for order in BUCKET_ORDERS]
        variants += [('aging', n) for n in self.plan.aging]
        return [
            dict(workload=subject.name, setting=field, value=value)
            | self.mean(subject, replace(Kairos(), **{field: value}), 'static', peak)
            for field, value in variants
        ]

    def networks(self, subject: Subject, peak: float) -> list[dict]:
        """The WAN's latency and bandwidth, hybrid, at the highest overload."""
        rate, wan = peak * self.plan.overload[-1], subject.common.wan
        variants = [('latency', s, replace(wan, latency=s)) for s in self.plan.latencies]
        variants += [('bandwidth', b, replace(wan, up=b, down=b)) for b in self.plan.bandwidths]
        return [
            dict(workload=subject.name, setting=setting, value=value)
            | self.mean(subject, Kairos(), 'dynamic', rate, where='hybrid', wan=link)
            for setting, value, link in variants
        ]


def _engines(subject: Subject, where: str, wan: Link | None) -> list[EngineState]:
    cloud = subject.profile.faster(subject.common.cloud_speedup, 'cloud')
    engines = dict(
        edge=EngineState('edge', subject.profile),
        cloud=EngineState('cloud', cloud, wan or subject.common.wan),
    )
    return list(engines.values()) if where == 'hybrid' else [engines[where]]


def saved(of: dict, against: dict) -> dict[str, float]:
    """Percent of latency saved: P25, average, P95; negative where it is worse."""
    return {key: 100 * (1 - of[key] / against[key]) for key in FIGURES}


def table(online: Sequence[dict]) -> list[dict]:
    """The paper's Table 2 at the peak, ours and theirs: a row per workload and baseline."""
    at = {
        (row['workload'], row['horizon'], row['scheduler']): row
        for row in online
        if row['share'] == 1.0
    }
    rows = []
    for workload in dict.fromkeys(row['workload'] for row in online):
        for baseline in ('fifo', 'autellix'):
            against = at[workload, 'static', baseline]
            ways = (('dynamic', 'kairos'), ('static', 'kairos'), ('dynamic', baseline))
            row = dict(workload=workload, against=baseline)
            for i, (system, (horizon, name)) in enumerate(zip(SYSTEMS, ways, strict=True)):
                row[system] = saved(at[workload, horizon, name], against)
                if workload in TABLE[baseline]:
                    row[f'{system}, paper'] = dict(
                        zip(FIGURES, TABLE[baseline][workload][i], strict=True)
                    )
            rows.append(row)
    return rows


def worse(online: Sequence[dict], tolerance: float = 0.01) -> list[dict]:
    """Where Kairos' average is above a baseline's, both with equal horizons."""
    rows = []
    for ours in (row for row in online if row['scheduler'] == 'kairos'):
        for other in online:
            same = all(ours[key] == other[key] for key in ('workload', 'share', 'horizon'))
            if same and ours['average'] > (1 + tolerance) * other['average']:
                rows.append(
                    {key: ours[key] for key in ('workload', 'share', 'horizon')}
                    | dict(than=other['scheduler'], by=ours['average'] / other['average'] - 1)
                )
    return rows


def decisions(counts: Sequence[int] = (10, 100, 1000), repeats: int = 200) -> list[dict]:
    """Microseconds of one `pick` among so many that wait, median and 99th percentile."""
    rows = []
    for name in SCHEDULERS:
        policy, row = scheduler(name), dict(scheduler=name)
        for count in counts:
            waiting, rng = _waiting(count), np.random.default_rng(0)
            times = []
            for i in range(repeats):
                for j in rng.integers(count, size=8):
                    waiting[j].arrived = 100.0 + i
                began = time.perf_counter()
                policy.pick(waiting, 100.0 + i, 8)
                times.append((time.perf_counter() - began) * 1e6)
            row[f'{count}_us'], row[f'{count}_p99'] = np.percentile(times, (50, 99)).tolist()
        rows.append(row)
    return rows


def _waiting(count: int) -> list[Waiting]:
    rng = np.random.default_rng(0)
    numbers = rng.random((count, 4)).tolist()
    return [
        Waiting(f'r{i}', 't', 1, 90 + 10 * a, 50 * b, 20 * c, 10 * a, 0.3 + 1.3 * d)
        for i, (a, b, c, d) in enumerate(numbers)
    ]
