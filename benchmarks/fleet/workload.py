"""Workloads from a YAML file, in which every number has a provenance; jobs drawn from them.

Knows distributions. Does not know queues or engines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from embodied_kv.fleet.engines import Link
from embodied_kv.fleet.profile import Profile
from embodied_kv.fleet.trace import Round

FILE = Path(__file__).with_name('workloads.yaml')
CALIBRATION = Path(__file__).with_name('calibration.yaml')
SOURCES = ('paper, ', 'ours: ')

Quantiles = Sequence[Sequence[float]]  # [share, value] points


class WorkloadError(ValueError):
    """An invalid file of workloads; the message names the place in it."""


@dataclass(frozen=True)
class Job:
    """A task to replay: the execution horizon of each round, and the sizes of a round.

    period: s between actions.
    """

    horizons: tuple[int, ...]
    period: float
    observation_bytes: int
    chunk_bytes: int


@dataclass(frozen=True)
class Common:
    """What all workloads share. period: s between actions. wifi: from a robot to the edge."""

    period: float
    chunk: int
    wifi: Link
    wan: Link
    cloud_speedup: float


@dataclass(frozen=True)
class Workload:
    """A kind of task on a model; fields as the YAML file describes them.

    profile: at the edge. rounds, cv: of a task, their mean and coefficient of variation. peak:
    tasks/s at which FIFO takes three times as long as without load, at a cv of 0.5. valid: whether
    the baselines relate to each other as in the paper (`benchmarks.fleet.calibrate`); None: not
    known.
    """

    name: str
    profile: Profile
    rounds: float
    cv: float
    horizon: Quantiles
    ratio: Quantiles
    minimum: int
    phase: float
    observation_bytes: int
    peak: float
    valid: bool | None


def read(
    path: str | Path = FILE, calibration: str | Path = CALIBRATION
) -> tuple[Common, list[Workload]]:
    """Read the workloads, calibrated. Raises WorkloadError for a number without provenance."""
    try:
        chosen = yaml.safe_load(Path(calibration).read_text())['workloads']
        tree = yaml.safe_load(Path(path).read_text())
        common = {key: _values(value, f'common.{key}') for key, value in tree['common'].items()}
        shared = Common(
            1 / common['control_hz'],
            common['chunk'],
            Link(**common['wifi']),
            Link(**common['wan']),
            common['cloud_speedup'],
        )
        batches = common['batches']
        return shared, [_workload(e, batches, chosen[e['name']]) for e in tree['workloads']]
    except (KeyError, TypeError, AttributeError) as error:
        raise WorkloadError(f'{path}: {error!r}') from error
    except ValueError as error:
        raise WorkloadError(f'{path}: {error}') from error


def draw(workload: Workload, common: Common, count: int, seed: int) -> tuple[list[Job], list[Job]]:
    """Draw the same tasks twice: with their static horizon, and with a dynamic one.

    A task has a static H, a number of rounds (gamma, of the workload's mean and coefficient of
    variation), H * rounds actions, and phases of geometric length, each with a ratio; a round that
    begins in a phase executes min(H * ratio, chunk) actions. Both ways execute the same number of
    actions in all.
    """
    rng = np.random.default_rng(seed)
    horizons = _quantile(workload.horizon, rng.random(count)).round().astype(int)
    spread = workload.cv**2
    rounds = rng.gamma(1 / spread, workload.rounds * spread, count).round().clip(1).astype(int)
    static, dynamic = [], []
    for horizon, number in zip(horizons.tolist(), rounds.tolist(), strict=True):
        horizon = min(max(horizon, workload.minimum), common.chunk)
        total = horizon * number
        lengths = rng.geometric(1 / workload.phase, total)  # enough of them: each is at least 1
        ends = np.cumsum(lengths)
        ratios = _quantile(workload.ratio, rng.random(total))
        per_phase = np.minimum(horizon * ratios, common.chunk).round().astype(int)
        static.append(_job(workload, common, _cut(total, [total], [horizon])))
        dynamic.append(_job(workload, common, _cut(total, ends.tolist(), per_phase.tolist())))
    return static, dynamic


def recorded_jobs(period: float, rounds: Iterable[Round]) -> list[Job]:
    """Return one job per task of a trace, in the order in which tasks first appear."""
    tasks: dict[str, list[Round]] = {}
    for record in rounds:
        tasks.setdefault(record.task, []).append(record)
    return [
        Job(
            tuple(record.horizon for record in records),
            period,
            max(record.observation_bytes for record in records),
            max(record.chunk_bytes for record in records),
        )
        for records in tasks.values()
    ]


def sample(jobs: Sequence[Job], count: int, rng: np.random.Generator) -> list[Job]:
    """Return `count` jobs, drawn with replacement."""
    return [jobs[i] for i in rng.integers(len(jobs), size=count)]


def poisson(rate: float, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return moments of arrival, s: `rate` tasks a second, float64 [count]."""
    return np.cumsum(rng.exponential(1 / rate, count))


def _cut(total: int, ends: Sequence[int], horizons: Sequence[int]) -> tuple[int, ...]:
    """Return the actions of each round: the horizon of the phase in which it begins.

    The last round has the rest.
    """
    done, phase, rounds = 0, 0, []
    while done < total:
        while ends[phase] <= done:
            phase += 1
        rounds.append(min(horizons[phase], total - done))
        done += rounds[-1]
    return tuple(rounds)


def _job(workload: Workload, common: Common, horizons: tuple[int, ...]) -> Job:
    size = workload.profile.chunk_bytes
    return Job(horizons, common.period, workload.observation_bytes, size)


def _quantile(points: Quantiles, shares: np.ndarray) -> np.ndarray:
    at, values = np.asarray(points, float).T
    return np.interp(shares, at, values)


def _workload(entry: dict, batches: Sequence[int], calibrated: dict) -> Workload:
    name = entry['name']
    found = {key: _values(value, f'{name}.{key}') for key, value in entry.items() if key != 'name'}
    generation = found.pop('generation')
    seconds = tuple(generation['fixed'] + generation['each'] * n for n in batches)
    profile = Profile(name, tuple(batches), seconds, found.pop('chunk_bytes'))
    for key in ('horizon', 'ratio'):
        points = np.asarray(found[key], float)
        if points.ndim != 2 or points.shape[1] != 2 or (np.diff(points, axis=0) < 0).any():
            raise ValueError(f'{name}.{key}: points of a share and a value, neither falling')
    chosen = {key: calibrated[key] for key in ('cv', 'peak', 'valid')}
    return Workload(name=name, profile=profile, **found, **chosen)


def _values(node: object, place: str) -> object:
    """Return a tree of {value, from} leaves without the provenance, which each must have."""
    if not isinstance(node, dict):
        raise ValueError(f'{place}: {node!r} does not say where it comes from')
    if node.keys() != {'value', 'from'}:
        return {key: _values(value, f'{place}.{key}') for key, value in node.items()}
    source = node['from']
    if not isinstance(source, str) or not source.startswith(SOURCES):
        raise ValueError(f'{place}: from must begin with paper or ours (got {source!r})')
    return node['value']
