"""The fleets that are run, the speed of their engines, and the cost of language.

Knows tasks, loads and profiles. Does not know tables, nor files other than those of costs.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from benchmarks.fleet.serving import measure as serving
from benchmarks.fleet.serving.lockstep import Order, run
from benchmarks.fleet.serving.world import Tables
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.warmup import warm_up
from embodied_kv.engine_config import EngineConfig
from embodied_kv.fleet.profile import Profile
from embodied_kv.model.policy import Policy
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.serving.engine_runner import EngineRunner

Seconds = dict[str, dict[int, float]]

# All chosen before any result.
ROBOTS = (16, 32, 64)
LOADS = (0.35, 0.7)  # of the peak: what the engine serves in full batches
TASKS = 64  # of a fleet: a robot has as many as its share, and at least one
DELAYS = (0.0, 0.05)  # s, `max_queue_delay`
STREAMS = 2  # of a robot: one for each prompt of the contract
PROMPT_INTERVAL = 1  # rounds: there is always language work
BATCH = serving.BATCH
ALONE = 4  # robots with an engine of their own that are run; the others are equivalent
SCHEDULER, HORIZON = 'kairos', serving.STATIC
REPEATS = 5  # of each cost
MARGIN_MS = 1.0  # as config/fleet.yaml


@dataclass(frozen=True)
class Plan:
    """The amount of work. robots: sizes of fleets. loads: shares of the peak.

    delays: s that requests are held for fuller batches. tasks: of a fleet. alone: robots with an
    engine of their own.
    """

    robots: tuple[int, ...] = ROBOTS
    loads: tuple[float, ...] = LOADS
    delays: tuple[float, ...] = DELAYS
    tasks: int = TASKS
    alone: int = ALONE

    @property
    def most(self) -> int:
        return max(self.robots)

    def each(self, robots: int) -> int:
        """Return the tasks of a robot in a fleet of `robots`."""
        return max(1, self.tasks // robots)


def engine_config(robots: int) -> EngineConfig:
    """Return the config for `robots` robots: a batch, a newest row each, and their streams."""
    streams = STREAMS * robots
    return EngineConfig(
        max_batch_robots=BATCH,
        rows=max(2 * BATCH, BATCH + robots + streams),
        reserved_rows=min(64, BATCH + robots),
        streams=streams,
        compressed_rows=0,
        deadline_margin_ms=MARGIN_MS,
    )


def word_seconds(policy: Policy, robots: int, repeats: int = REPEATS) -> Seconds:
    """Measure a query ('begin', by tokens) and a step of all ('decode', by streams), s."""
    engine = Engine(policy, engine_config(robots), policy.config.action_dt)
    found: dict[str, dict[int, list[float]]] = {'begin': {}, 'decode': {}}
    for _ in range(repeats):
        warm_up(engine)
        for kind, by_size in found.items():
            for size in range(1, max(engine.config.streams, engine.config.decode_tokens) + 1):
                if took := engine.latency.median(kind, size):
                    by_size.setdefault(size, []).append(took)
    return {kind: _rising(by_size) for kind, by_size in found.items()}


def _rising(by_size: dict[int, list[float]]) -> dict[int, float]:
    """Return medians that never fall with size: a larger size that is quicker is noise."""
    seconds, least = {}, 0.0
    for size in sorted(by_size):
        least = seconds[size] = max(least, statistics.median(by_size[size]))
    return seconds


def write_words(seconds: Seconds, path: Path) -> None:
    path.write_text(yaml.safe_dump(seconds))


def read_words(path: Path) -> Seconds:
    """Read costs as `write_words` writes them. Raises ValueError, OSError."""
    try:
        found = yaml.safe_load(path.read_text())
        return {
            kind: {int(size): float(s) for size, s in found[kind].items()}
            for kind in ('begin', 'decode')
        }
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f'{path}: no costs of words, begin and decode: {error!r}') from error


def speed(found: Profile, robots: int, load: float, dt: float) -> float:
    """Return how many times faster an engine must be for the fleet to load `load` of its peak."""
    engine = serving.physics(found, [robots], float(HORIZON.split(':')[1]), dt)
    return engine['asked'][robots] / (load * engine['capacity'])


def faster(words: Seconds, times: float) -> Seconds:
    """Return the costs of language on an engine that is so many times faster."""
    return {kind: {n: s / times for n, s in by.items()} for kind, by in words.items()}


def order(
    tasks: Sequence[Sequence[int]], charged: Profile, words: Seconds | None, delay: float
) -> Order:
    """Return robots with their tasks.

    words: what is charged for language; None: the robots are mute.
    """
    robots = len(tasks)
    made = serving.order(robots, robots, SCHEDULER, HORIZON, charged)
    habits = made.habits
    if words is not None:
        prompts = tuple(Embodiment.load('tabletop').contract.language.prompts)
        habits = replace(habits, prompts=prompts, prompt_interval_frames=PROMPT_INTERVAL)
    return replace(
        made,
        habits=habits,
        tasks=[list(own) for own in tasks],
        max_queue_delay=delay,
        speech=words or {},
        streams=STREAMS * robots,
    )


def measure(plan: Plan, policy: Policy, found: Profile, words: Seconds, quiet: bool) -> list[dict]:
    """Return a dict for every run: robots, load, way, speed, delay, result of `lockstep`."""
    model, most = policy.config, plan.most
    cases = serving.cases(max(plan.each(robots) * robots for robots in plan.robots))
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    runs = []
    with (
        closing(Tables(cases, most, model.vision.image_size, model.action_dt)) as world,
        EngineRunner(policy, engine_config(most)) as local,
        Progress(*columns, console=Console(stderr=True), disable=quiet) as bar,
    ):
        bar_task = bar.add_task('runs', total=None)

        def measured(
            way: str, tasks: list, robots: int, load: float, times: float, delay: float = 0.0
        ) -> None:
            charged = found.faster(times, found.engine)
            costs = None if way == 'mute' else faster(words, times)
            result = run(local, order(tasks, charged, costs, delay), world)
            told = dict(robots=robots, load=load, way=way, speed=times, delay=delay)
            runs.append(told | result)
            bar.advance(bar_task)

        for robots in plan.robots:
            each = range(plan.each(robots))
            tasks = [[r + robots * i for i in each] for r in range(robots)]
            for load in plan.loads:
                times = speed(found, robots, load, model.action_dt)
                for delay in plan.delays:
                    measured('mute', tasks, robots, load, times, delay)
                    measured('speaking', tasks, robots, load, times, delay)
                for own in tasks[: plan.alone]:
                    measured('alone', [own], robots, load, times / robots)
    return runs
