"""A fleet of robots with visual memory, without one part at a time: batches and latency of tasks.

A batch of robots is measured, prefill to chunk, in turns:

all         each robot reads 4 memory rows with a share of their tokens; Kairos orders requests
no memory   no robot reads memory rows
no sharing  the frames of the memory rows are encoded again in each round
no Kairos   FIFO orders requests

Then tasks are simulated with these batches. A rate is relative to the peak of FIFO with memory
rows; a latency is relative to that of `all` at the same rate, a geometric mean over workloads.

Physics: a chunk needs one prefill per robot and, without sharing, one more per memory row. So the
capacity falls to about one fifth where prefills dominate a chunk. Above the capacity, the latency
of a task depends on the number of tasks.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from benchmarks.common import report
from benchmarks.common.command import command
from benchmarks.common.scene import FullPolicy, observation
from benchmarks.fleet import workload
from benchmarks.fleet.runs import HIGHEST, PLANS, POLICIES, Bench
from benchmarks.fleet.subject import Subject
from benchmarks.visual_memory import remembered
from embodied_kv.config import preset
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.shapes import doubling
from embodied_kv.engine_config import EngineConfig
from embodied_kv.fleet.profile import Profile
from embodied_kv.model.dtype import served
from embodied_kv.serving.batch import profile_of, serve

ALL = 'all'
WAYS = {  # the batches and the scheduler of each
    ALL: (ALL, 'kairos'),
    'no memory': ('no memory', 'kairos'),
    'no sharing': ('no sharing', 'kairos'),
    'no Kairos': (ALL, 'fifo'),
}
BATCHES = tuple(dict.fromkeys(batch for batch, _ in WAYS.values()))
ROWS, SHARE = 4, 0.25
SHARES = (0.5, 1.0, HIGHEST)  # of the peak rate
FIGURES = ('average', 'p95')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument('--preset', default='tabletop_long')
    parser.add_argument('--robots', type=int, default=8, help='the largest batch')
    parser.add_argument('--turns', type=int, default=7, help='measurements of each batch')
    parser.add_argument('--quick', action='store_true', help='a tiny model and one workload')


def run(args: argparse.Namespace) -> dict:
    """Measure, simulate, print the tables, and return all figures."""
    torch.set_num_threads(1)
    name, turns = ('tiny', 2) if args.quick else (args.preset, args.turns)
    profiles = measured(name, args.robots, turns)
    common, workloads = workload.read()
    chosen = [
        replace(each, profile=replace(profiles[ALL], chunk_bytes=each.profile.chunk_bytes))
        for each in workloads[: 1 if args.quick else None]
    ]
    plan = PLANS['quick' if args.quick else 'full']
    each = (plan.halvings + 1 + len(WAYS) * len(SHARES)) * len(plan.seeds)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=args.json) as bar:
        task = bar.add_task('simulations', total=len(chosen) * each)
        bench = Bench(plan, lambda: bar.advance(task))
        subjects = [replace(Subject.of(one, common), calibrated={}) for one in chosen]
        rows = [row for one in subjects for row in simulated(bench, one, profiles)]
    batches = [_batch_row(batch, profile) for batch, profile in profiles.items()]
    total = overall(rows)
    if not args.json:
        report.show('fleet.remembering: batches', batches)
        report.show(
            'fleet.remembering: latency of a task, in relation to all',
            total,
            'by rate over the peak; geometric means of the workloads',
        )
    return dict(
        preset=name, turns=turns, quick=args.quick, batches=batches, total=total, rows=rows
    )


def measured(name: str, robots: int, turns: int) -> dict[str, Profile]:
    """Return the profile of an engine for each of BATCHES; medians of processor time."""
    policy = FullPolicy.random(served(preset(name), 'cpu'))
    config = EngineConfig(
        max_batch_robots=robots,
        rows=2 * robots + 2,
        streams=1,
        compressed_rows=0,
        memory_rows=ROWS,
        memory_keep_ratio=SHARE,
        memory_interval=3600.0,
        time_budget=False,
    )
    engine = Engine(policy, config)
    kept = remembered(engine, ROWS)
    seconds: dict[str, dict[int, float]] = {batch: {} for batch in BATCHES}
    for size in doubling(robots):
        times: dict[str, list[float]] = {batch: [] for batch in BATCHES}
        for turn in range(turns + 1):  # the first one warms up
            for batch in BATCHES if turn % 2 else reversed(BATCHES):
                took = _seconds(engine, batch, size, kept)
                if turn:
                    times[batch].append(took)
        for batch in BATCHES:  # a profile never falls: a faster larger batch is noise
            before = max(seconds[batch].values(), default=0.0)
            seconds[batch][size] = max(before, statistics.median(times[batch]))
    return {batch: profile_of(policy.config, seconds[batch]) for batch in BATCHES}


def _seconds(engine: Engine, batch: str, size: int, kept: Sequence) -> float:
    """Return the processor time of a batch, s."""
    frames = [observation(engine.policy.config, i, f'robot {i}') for i in range(size)]
    earlier = [replace(frame, robot=f'earlier {frame.robot}') for frame in frames]
    for frame in (*frames, *earlier):
        engine.forget(frame.robot)
    if batch != 'no memory':
        for frame in frames:
            engine.memory.replace(frame.robot, kept)
    began = time.process_time()
    if batch == 'no sharing':
        for _ in range(ROWS):
            for frame in earlier:
                engine.forget(frame.robot)  # so that it has no memory row of its own
            engine.prefill([replace(frame, deadline=-math.inf) for frame in earlier])
    made = serve(engine, frames, math.inf)
    took = time.process_time() - began
    assert not any(isinstance(chunk, Exception) for chunk in made)
    return took


def simulated(bench: Bench, subject: Subject, profiles: dict[str, Profile]) -> list[dict]:
    """Return the latency (s) of a task for each rate and way of one workload."""
    size, fifo = subject.profile.chunk_bytes, bench.peak(subject)
    rows = []
    for share in SHARES:
        for way, (batch, scheduler) in WAYS.items():
            own = replace(subject, profile=replace(profiles[batch], chunk_bytes=size))
            at = fifo['peak'] * share
            tasks = bench.tasks(subject)  # the same for all ways, whatever their capacity
            found = replace(bench, plan=replace(bench.plan, tasks=tasks, span=0.0)).mean(
                own, POLICIES[scheduler], 'static', at
            )
            figures = {key: found[key] for key in FIGURES}
            rows.append(dict(workload=subject.name, share=share, way=way, rate=at) | figures)
    return rows


def overall(rows: Sequence[dict]) -> list[dict]:
    """Return, by way, the latency over that of `all` at each rate."""
    known = {(row['workload'], row['share'], row['way']): row for row in rows}
    names = list(dict.fromkeys(row['workload'] for row in rows))
    table = []
    for way in WAYS:
        line: dict = dict(way=way)
        for share in SHARES:
            for key in FIGURES:
                ratios = (
                    known[name, share, way][key] / known[name, share, ALL][key] for name in names
                )
                line[f'{key}, {share:g}'] = _geometric(ratios)
        table.append(line)
    return table


def _geometric(values: Iterable[float]) -> float:
    return statistics.geometric_mean(list(values))


def _batch_row(batch: str, profile: Profile) -> dict:
    """Return the ms of the smallest and the largest batch, and the rounds/s at saturation."""
    full = profile.saturation
    return dict(
        batch=batch,
        one_ms=1e3 * profile.latency(1),
        largest=profile.sizes[-1],
        largest_ms=1e3 * profile.seconds[-1],
        saturation=full,
        rounds_per_second=full / profile.latency(full),
    )


main = command('fleet.remembering', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
