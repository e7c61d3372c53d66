"""An open fleet through the real node: tasks of a workload arrive, each with a horizon of its own.

What serves is the node as in a closed fleet, in virtual time. What is served has no world: a task
is done when its rounds have been executed, as in the simulation, and success means nothing. The
network is tiny, with random weights and chunks of 50 actions; a batch takes what the workload's
profile says.

Knows workloads, orders and rows. Does not know ROS.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import yaml
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from embodied_kv.bench.common import report
from embodied_kv.bench.fleet.serving import figures
from embodied_kv.bench.fleet.serving.world import Fleets
from embodied_kv.config import TINY
from embodied_kv.fleet import profile, workload
from embodied_kv.fleet.profile import Profile
from embodied_kv.fleet.trace import Job, poisson
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.robots.reading import SHIPPED

ROBOTS = 64  # and as many tasks: each has a robot of its own, as in the simulation
LARGEST = 4  # robots of a batch
LOAD = 3.0  # of the capacity: tasks pile up while they arrive
SEED = 7  # of tasks and arrivals
DT = 0.03  # s between actions: whole set-points, near the workloads' 30 Hz
AHEAD = 4  # actions before its end at which a robot asks: below the least H, 5
JUDGED = 25  # set-points between two looks whether a task is done: 0.25 s
PATIENT = 60.0  # s without an answer after which it asks again: nothing is lost here
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
    """What the robots live in: a task is done when its rounds have been executed."""

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
    """The profile, with no batch above LARGEST."""
    kept = [(n, s) for n, s in zip(found.sizes, found.seconds, strict=True) if n <= LARGEST]
    sizes, seconds = zip(*kept, strict=True)
    return Profile(found.engine, sizes, seconds, found.chunk_bytes)


def order(
    jobs: Sequence[Job], arrivals: Sequence[float], robots: int, contract: Path, charged: Path
) -> dict:
    """An open fleet: task i is robot i's, modulo `robots`, from its arrival on."""
    engine = dict(robots=LARGEST, rows=2 * LARGEST + 2, streams=1, compressed_rows=0)
    engine |= dict(time_budget=False)
    own = [list(range(robot, len(jobs), robots)) for robot in range(robots)]
    return dict(
        parameters=dict(contract=str(contract), preset='tiny', checkpoint='random')
        | dict(profile=str(charged), autostart=False)
        | dict(capsules=False, language=False, memory=False)
        | {f'engine.{name}': value for name, value in engine.items()},
        habits=dict(
            execution_horizon='whole',
            joints=Embodiment.load('tabletop').axes,
            dt=DT,
            request_ahead=AHEAD,
            judged=JUDGED,
            retry_interval=PATIENT,
        ),
        starts=[0.0] * robots,
        tasks=own,
        arrivals=[[float(arrivals[task]) for task in tasks] for tasks in own],
        horizons={task: f'static:{job.horizons[0]}' for task, job in enumerate(jobs)},
    )


def contract(path: Path) -> Path:
    """Writes the tabletop's contract with chunks of 50 actions, DT apart."""
    tree = yaml.safe_load((SHIPPED / 'tabletop.yaml').read_text())
    path.write_text(yaml.safe_dump(tree | dict(fps=1 / DT, chunk_size=50)))
    return path


def measure(name: str, robots: int, ways: Sequence[str], folder: Path, quiet: bool) -> dict:
    """Each of these WAYS serves the same tasks. Raises ValueError for an unknown workload."""
    common, workloads = workload.read()
    named = {each.name: each for each in workloads}
    if name not in named:
        raise ValueError(f'no workload {name!r}; there are: {", ".join(named)}')
    given, folder = named[name], folder / 'open_fleet'
    folder.mkdir(parents=True, exist_ok=True)
    jobs = workload.draw(given, replace(common, period=DT), robots, SEED)[0]
    engine = batches(given.profile)
    full = engine.saturation
    capacity = full / engine.latency(full) / fmean(len(job.horizons) for job in jobs)
    arrivals = poisson(LOAD * capacity, robots, np.random.default_rng(SEED))
    profile.write(engine, folder / 'profile.yaml')
    asked = order(jobs, arrivals, robots, contract(folder / 'robot.yaml'), folder / 'profile.yaml')
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    runs = []
    with (
        closing(Fleets()) as fleets,
        Progress(*columns, console=Console(stderr=True), disable=quiet) as bar,
    ):
        task = bar.add_task('tasks', total=robots * len(ways))
        for way in ways:
            bar.update(task, description=way)
            told = asked | dict(parameters=asked['parameters'] | WAYS[way])
            found = fleets.run(told, Rounds(jobs), lambda: bar.advance(task))
            runs.append(dict(robots=robots, way=way) | found)
    return dict(
        workload=name,
        robots=robots,
        rate=LOAD * capacity,
        horizons=[job.horizons[0] for job in jobs],
        rows=[row(run) for run in runs],
        pairs=figures.pairs(runs, PAIRS),
    )


def row(run: dict) -> dict:
    """Latency, s; average with its 95% interval over tasks; what the engine did."""
    values = [task['seconds'] for task in run['tasks']]
    p25, p95 = np.percentile(values, (25, 95))
    low, high = figures.interval(values)
    waiting, costs = np.array(run['decisions'], np.float64).T
    return dict(
        way=run['way'],
        p25=float(p25),
        average=fmean(values),
        low=low,
        high=high,
        p95=float(p95),
        batch=run['served'] / run['batches'],
        busy=run['charged'] / run['span'],
        waiting=float(waiting.mean()),
        decision_us=float(np.median(costs)) * 1e6,
    )


def show(found: dict) -> None:
    """Two tables."""
    title = 'fleet.serving: {workload}, {robots} robots, a task each'.format(**found)
    note = f'{found["rate"]:.2f} tasks/s arrive; latency in s; waiting: robots at a decision'
    report.show(title, found['rows'], note)
    report.show(f'{title}: paired', found['pairs'], 's, 95% with tasks as units')
