"""Expected success of a task by the executed share of its chunks.

Knows measured rates and execution horizons. Does not know schedulers or engines. The rates are
those of another model on other tasks than the workloads': they charge a horizon with the loss of
the only policy whose success was measured here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray

from benchmarks.fleet.workload import Job

FILE = Path(__file__).with_name('success.yaml')


@dataclass(frozen=True)
class Curve:
    """Success by executed share.

    shares: of a chunk, ascending, float64 [k]. rates: of success in episodes that execute this
    share of each chunk, [k]. episodes: of each rate.
    """

    shares: NDArray[np.float64]
    rates: NDArray[np.float64]
    episodes: int

    @classmethod
    def read(cls, path: Path = FILE) -> Curve:
        """Return the measured curve of a file."""
        tree = yaml.safe_load(path.read_text())
        horizons, rates = zip(*sorted(tree['success'].items()), strict=True)
        return cls(np.array(horizons) / tree['chunk'], np.array(rates), tree['episodes'])

    def drawn(self, random: np.random.Generator) -> Curve:
        """Return a curve of as many episodes that succeed with these rates.

        At least one episode of each share succeeds.
        """
        counts = random.binomial(self.episodes, self.rates).clip(1)
        return Curve(self.shares, counts / self.episodes, self.episodes)

    def of(self, jobs: Sequence[Job], chunk: int) -> NDArray[np.float64]:
        """Return the expected success of each job, [jobs].

        Each executed action has the same risk as in an episode that executes this share of every
        chunk, so the logarithm of a task's success is the mean of those of its actions. Between
        two measured shares rates are linear; outside they are those of the nearest one.
        """
        counts = [len(job.horizons) for job in jobs]
        actions = np.concatenate([job.horizons for job in jobs])
        logs = actions * np.log(np.interp(actions / chunk, self.shares, self.rates))
        begins = np.cumsum([0, *counts[:-1]])
        return np.exp(np.add.reduceat(logs, begins) / np.add.reduceat(actions, begins))
