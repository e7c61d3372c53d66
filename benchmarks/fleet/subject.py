"""The subjects of the fleet's benchmark: tasks by seed, and the engine that serves them.

Knows workloads and traces. Does not know schedulers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from benchmarks.fleet import trace_reader
from benchmarks.fleet.workload import Common, Job, Workload, draw, recorded_jobs, sample
from embodied_kv.fleet.profile import Profile


@dataclass(frozen=True)
class Subject:
    """Jobs by count and seed, with static and with dynamic horizons, and an engine.

    rounds: of a task, mean. calibrated: the peak, and other facts of the test bed; {} if a peak
    has to be searched.
    """

    name: str
    profile: Profile
    common: Common
    jobs: Callable[[int, int], tuple[list[Job], list[Job]]]
    rounds: float
    calibrated: dict = field(default_factory=dict)

    @property
    def lead(self) -> float:
        """Return the lead as recorded at the edge, wherever a round is served, s (section 5.1)."""
        return self.profile.latency(1) + 2 * self.common.wifi.latency

    @property
    def capacity(self) -> float:
        """Return the tasks/s that the edge serves in full batches, with static horizons."""
        full = self.profile.saturation
        return full / self.profile.latency(full) / self.rounds

    @classmethod
    def of(cls, workload: Workload, common: Common) -> Subject:
        kept = {}

        def jobs(count: int, seed: int) -> tuple[list[Job], list[Job]]:
            if (count, seed) not in kept:
                kept[count, seed] = draw(workload, common, count, seed)
            return kept[count, seed]

        known = dict(cv=workload.cv, peak=workload.peak, valid=workload.valid)
        return cls(workload.name, workload.profile, common, jobs, workload.rounds, known)

    @classmethod
    def recorded(cls, path: str, profile: Profile, common: Common) -> Subject:
        """Return the subject of a trace; its horizons are the recorded ones."""
        whole = recorded_jobs(*trace_reader.read(path))

        def jobs(count: int, seed: int) -> tuple[list[Job], list[Job]]:
            same = sample(whole, count, np.random.default_rng(seed))
            return same, same

        return cls(path, profile, common, jobs, fmean(len(job.horizons) for job in whole))
