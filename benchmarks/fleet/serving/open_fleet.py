"""An open fleet in virtual time: tasks of a workload arrive, each with a horizon of its own.

A policy server's sessions serve it, as they serve a closed fleet. The robots have no simulated
world: a task is done when its rounds have been executed, as in the simulation, and success has no
meaning. The network is tiny, with random weights and chunks of 50 actions; a batch takes the time
of the workload's profile. Every way serves the same draws of tasks and arrivals; draws are the
independent units of a comparison.

Knows workloads, orders and rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from benchmarks.common import report
from benchmarks.fleet.compare import FIGURES, T95, saved
from benchmarks.fleet.serving.lockstep import Order, run
from benchmarks.fleet.serving.robot import Habits
from benchmarks.fleet.workload import Common, Job, Workload, draw, poisson, read
from embodied_kv.config import TINY
from embodied_kv.engine_config import EngineConfig
from embodied_kv.fleet.profile import Profile
from embodied_kv.model.policy import Policy
from embodied_kv.serving.engine_runner import EngineRunner

ROBOTS = 64  # and as many tasks: each has a robot of its own, as in the simulation
LARGEST = 4  # robots of a batch
LOAD = 3.0  # of the capacity: tasks pile up while they arrive
SEED = 7  # of the first draw of tasks and arrivals; the next has the next number
DRAWS, MOST = 8, len(T95) + 1  # and the most for which there is an interval
DT = 0.03  # s between actions: whole set-points, near the workloads' 30 Hz
AHEAD = 4  # actions before its end at which a robot requests: below the least H, 5
JUDGED = 25  # set-points between two checks whether a task is done: 0.25 s
WAYS = {
    'fifo': dict(scheduler='fifo'),
    'autellix': dict(scheduler='autellix'),
    'kairos': dict(scheduler='kairos'),
    'kairos, pending': dict(scheduler='kairos', pending=True),
}
PAIRS = (
    ('autellix', 'fifo'),
    ('kairos', 'fifo'),
    ('kairos', 'autellix'),
    ('kairos, pending', 'fifo'),
    ('kairos, pending', 'autellix'),
)


class Rounds:
    """The world of the robots: a task is done when its rounds have been executed."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        size = TINY.vision.image_size
        self._images = {view: np.zeros((size, size, 3), np.uint8) for view in TINY.views}
        self._left: dict[int, int] = {}  # by robot
        self._ends: dict[int, float] = {}

    def begin(self, robot: int, task: int) -> str:
        self._left[robot], self._ends[robot] = len(self._jobs[task].horizons), np.inf
        return 'go on'

    def look(self, robot: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        return self._images, np.full(TINY.state_dim, 0.1)

    def follow(self, robot: int, actions: np.ndarray, began: int) -> None:
        self._left[robot] -= 1
        if not self._left[robot]:
            self._ends[robot] = began + 100 * DT * len(actions)

    def advance(self, robot: int, moment: int) -> tuple[bool, bool]:
        return moment >= self._ends[robot], False


def batches(found: Profile) -> Profile:
    """Return the profile without batches above LARGEST."""
    kept = [(n, s) for n, s in zip(found.sizes, found.seconds, strict=True) if n <= LARGEST]
    sizes, seconds = zip(*kept, strict=True)
    return Profile(found.engine, sizes, seconds, found.chunk_bytes)


def order(jobs: Sequence[Job], arrivals: Sequence[float], robots: int, charged: Profile) -> Order:
    """Return an open fleet: task i is robot i's, modulo `robots`, from its arrival on."""
    own = [list(range(robot, len(jobs), robots)) for robot in range(robots)]
    return Order(
        profile=charged,
        habits=Habits('whole', dt=DT, request_ahead=AHEAD, judged=JUDGED),
        starts=[0.0] * robots,
        tasks=own,
        arrivals=[[float(arrivals[task]) for task in tasks] for tasks in own],
        horizons={task: f'static:{job.horizons[0]}' for task, job in enumerate(jobs)},
    )


def engine() -> EngineRunner:
    """Return an engine of a tiny random network whose chunks have 50 actions, DT apart."""
    policy = Policy.random(replace(TINY, chunk_size=50, action_dt=DT))
    rows = 2 * LARGEST + 2
    config = EngineConfig(
        max_batch_robots=LARGEST, rows=rows, streams=1, compressed_rows=0, time_budget=False
    )
    return EngineRunner(policy, config)


@dataclass(frozen=True)
class Drawn:
    """Tasks, and when they arrive, s; rate: tasks per s."""

    seed: int
    jobs: Sequence[Job]
    arrivals: Sequence[float]
    rate: float

    @classmethod
    def of(cls, given: Workload, common: Common, engine: Profile, robots: int, seed: int) -> Drawn:
        """Draw a task for each robot, at LOAD times the capacity of the engine."""
        jobs = draw(given, replace(common, period=DT), robots, seed)[0]
        full = engine.saturation
        rounds = fmean(len(job.horizons) for job in jobs)
        rate = LOAD * full / engine.latency(full) / rounds
        return cls(seed, jobs, poisson(rate, robots, np.random.default_rng(seed)), rate)


def measure(name: str, robots: int, ways: Sequence[str], draws: int, quiet: bool) -> dict:
    """Serve `draws` draws in each of these WAYS. Raises ValueError for an unknown workload."""
    common, workloads = read()
    named = {each.name: each for each in workloads}
    if name not in named:
        raise ValueError(f'no workload {name!r}; there are: {", ".join(named)}')
    charged = batches(named[name].profile)
    drawn = [Drawn.of(named[name], common, charged, robots, SEED + i) for i in range(draws)]
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    runs: dict[str, list[dict]] = {way: [] for way in ways}
    with (
        engine() as local,
        Progress(*columns, console=Console(stderr=True), disable=quiet) as bar,
    ):
        task = bar.add_task('tasks', total=draws * robots * len(ways))
        for each in drawn:
            asked = order(each.jobs, each.arrivals, robots, charged)
            for way in ways:
                bar.update(task, description=f'{way}, seed {each.seed}')
                told, world = replace(asked, **WAYS[way]), Rounds(each.jobs)
                found = run(local, told, world, lambda: bar.advance(task))
                runs[way].append(dict(seed=each.seed) | row(found))
    return dict(
        workload=name,
        robots=robots,
        rate=fmean(each.rate for each in drawn),
        horizons=[[job.horizons[0] for job in each.jobs] for each in drawn],
        rows=[means(way, own) for way, own in runs.items()],
        pairs=[
            dict(way=way, against=other) | saved(dict(seeds=runs[way]), dict(seeds=runs[other]))
            for way, other in PAIRS
            if way in runs and other in runs
        ],
    )


def row(run: dict) -> dict[str, float]:
    """Return the latency, s, of a draw's tasks, and what the engine did."""
    values = [task['seconds'] for task in run['tasks']]
    p25, p95 = np.percentile(values, (25, 95))
    waiting, costs = np.array(run['decisions'], np.float64).T
    return dict(
        p25=float(p25),
        average=fmean(values),
        p95=float(p95),
        longest=max(values),
        batch=run['served'] / run['batches'],
        busy=run['charged'] / run['span'],
        waiting=float(waiting.mean()),
        decision_us=float(np.median(costs)) * 1e6,
    )


def means(way: str, rows: Sequence[dict]) -> dict:
    """Return a way's row: means over its draws, and the draws."""
    names = [name for name in rows[0] if name != 'seed']
    return dict(way=way) | {n: fmean(row[n] for row in rows) for n in names} | dict(seeds=rows)


def show(found: dict) -> None:
    """Print two tables."""
    title = 'fleet.serving: {workload}, {robots} robots, a task each'.format(**found)
    rows = [{n: value for n, value in row.items() if n != 'seeds'} for row in found['rows']]
    draws = len(found['horizons'])
    note = f'{found["rate"]:.2f} tasks/s arrive; means of {draws} draws; latency in s; waiting: '
    report.show(title, rows, note + 'robots at a decision')
    text = '{saved:.1f} ({low:.1f} to {high:.1f})'
    pairs = [pair | {f: text.format(**pair[f]) for f in FIGURES} for pair in found['pairs']]
    report.show(f'{title}: % of latency saved', pairs, '95%, draws in pairs')
