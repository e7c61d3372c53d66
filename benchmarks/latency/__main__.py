"""Late chunks: success, time and smoothness by injected latency, for five chunking methods.

The tabletop policy runs in the worlds of evaluation. Scenes, tasks, noise and latencies are the
same for every method, so all differences are paired by episode. A latency is simulated time from
an observation until its chunk takes over; one chunk is made at a time. The latency is fixed, or it
varies uniformly by --spread, and one in 20 is twice as long. Each point is stored under --out as
soon as it is measured and is not measured again under the same conditions, so a run may be
interrupted.

With the method off, a new chunk takes over at the action that is due by time. guided and vjp pull
each Euler step towards the leftover actions of the running chunk: guided takes the Jacobian of the
step as the identity, vjp computes it. trained receives the actions that will have been executed
when the chunk arrives. ensemble averages all actions that the chunks of `off` have for a moment.
The defaults of guidance are those of the papers: the maximum weight is 5, and the weights fall
exponentially until the end of the chunk. With several counts, --steps measures how few Euler steps
suffice, at 0 and 200 ms.

Physics: a chunk that arrives d actions late was made for an arm that has since executed d actions
of the running chunk. Where the new chunk differs from these d actions, the arm jumps by the
difference: a seam. It grows with latency and with the number of different answers that a policy
has to the same view; only a method that knows these d actions can make it smaller. The world moves
on as well: what happens while a chunk is made is unseen by the policy and costs every method
equally.

Sources: Black, Galliker and Levine 2025, "Real-Time Execution of Action Chunking Flow Policies",
and Black et al. 2025, "Training-time action conditioning" (arXiv 2512.05964); Zhao et al. 2023
(ACT).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from benchmarks.common import report
from benchmarks.common.command import BenchmarkError, command
from benchmarks.latency import aims, figures
from benchmarks.latency.plot import plot
from benchmarks.latency.points import Conditions, Episodes, Point, measure
from benchmarks.latency.show import show
from benchmarks.latency.store import Store
from benchmarks.latency.ways import OFF, TRAINED, WAYS
from embodied_kv.control.rtc import EXPONENTIAL, SCHEDULES
from embodied_kv.demo.sim.tasks import BASIC, FAMILIES
from embodied_kv.engine.fingerprint import weights_digest
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.policy import Policy
from training.evaluate import evaluation
from training.evaluate.actors import Chunking
from training.evaluate.cases import LONGEST

EPISODES, QUICK_EPISODES = 100, 2  # of each family
LATENCIES, QUICK_LATENCIES, STEPS_LATENCIES = (0, 50, 100, 200, 300, 400), (0, 300), (0, 200)
VARYING, SPREAD = (200,), 0.5
STEPS = 4
SET = 3  # set of scenes; `training.evaluate` uses 0 to 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this benchmark."""
    add = parser.add_argument
    add('--checkpoint', help="file or folder, or 'random'; else the bundled one")
    add('--ways', nargs='+', choices=WAYS, help='all; of several step counts: off and trained')
    add('--latencies', nargs='+', type=float, metavar='MS', help='fixed ones; default 0 to 400')
    add('--varying', nargs='*', type=float, metavar='MS', help='means of those that vary')
    add('--spread', type=float, default=SPREAD, help='share by which they vary, with spikes')
    add('--steps', nargs='+', type=int, default=[STEPS], help='Euler steps of a chunk')
    add('--schedule', choices=SCHEDULES, default=EXPONENTIAL, help='of the weights of guidance')
    add('--horizon', type=int, default=LONGEST, help='actions that are guided')
    add('--max-guidance', type=float, default=EngineConfig.rtc_max_guidance)
    add('--episodes', type=int, help=f'of each family; default {EPISODES}')
    add('--families', nargs='+', choices=FAMILIES, default=list(BASIC))
    add('--crowded', action='store_true', help='two places, and things put away')
    add('--seed', type=int, default=SET, help='which set of scenes')
    add('--robots', type=int, default=20, help='worlds of one engine, in lockstep')
    add('--out', type=Path, help='folder of the points; default out/bench/latency')
    add('--quick', action='store_true', help='0 and 300 ms, 2 episodes of each family')


def plan(args: argparse.Namespace) -> list[Point]:
    """Return the points to measure, ordered by latency."""
    several = len(args.steps) > 1
    ways = args.ways or ((OFF, TRAINED) if several else WAYS)
    fixed, varying = (STEPS_LATENCIES, ()) if several else (LATENCIES, VARYING)
    if args.quick:
        fixed, varying = QUICK_LATENCIES, ()
    fixed = fixed if args.latencies is None else args.latencies
    varying = varying if args.varying is None else args.varying
    latencies = [(ms, 0.0) for ms in fixed] + [(ms, args.spread) for ms in varying]
    points = [
        Point(way, float(ms), spread, steps)
        for ms, spread in latencies
        for steps in args.steps
        for way in ways
    ]
    return list(dict.fromkeys(points))


def conditions(args: argparse.Namespace) -> Conditions:
    """Return the conditions that all points share."""
    episodes = args.episodes or (QUICK_EPISODES if args.quick else EPISODES)
    families = tuple(dict.fromkeys(args.families))
    guided = Chunking(
        rtc_max_guidance=args.max_guidance, schedule=args.schedule, horizon=args.horizon
    )
    return Conditions(families, episodes, args.seed, args.crowded, args.robots, guided)


def check(args: argparse.Namespace, dt: float) -> None:
    """Raise BenchmarkError for a number out of range. dt: s between two actions."""
    for name in ('episodes', 'robots'):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise BenchmarkError(f'--{name} is at least 1')
    most = (LONGEST - 1) * dt * 1e3
    for ms in (*(args.latencies or ()), *(args.varying or ())):
        if not 0 <= ms <= most:
            raise BenchmarkError(
                f'a latency is 0 to {most:.0f} ms: a chunk would be over when it comes'
            )
    if not 0 < args.spread < 1:
        raise BenchmarkError('--spread is between 0 and 1')
    if not all(1 <= steps <= 50 for steps in args.steps):
        raise BenchmarkError('--steps are from 1 to 50')
    if not 0 <= args.horizon <= LONGEST:
        raise BenchmarkError(f'--horizon is 0 to {LONGEST}, the chunk size')


def gathered(
    policy: Policy, points: Sequence[Point], store: Store, quiet: bool
) -> dict[Point, Episodes]:
    """Return all points; measure and store those that the store lacks."""
    missing = [point for point in points if not store.has(point)]
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as bar:
        task = bar.add_task('episodes', total=len(missing) * len(store.conditions.cases))
        for point in missing:
            bar.update(task, description=f'{point.way}, {point.latency} ms')
            outcomes = measure(policy, point, store.conditions, lambda: bar.advance(task))
            store.write(point, Episodes.made(outcomes))
    return {point: store.read(point) for point in points}


def run(args: argparse.Namespace) -> dict:
    """Measure the missing points, draw, print the tables, and return all figures."""
    torch.set_num_threads(1)
    policy = evaluation.load(args.checkpoint)
    check(args, policy.config.action_dt)
    weights, folder = weights_digest(policy.model), args.out or report.OUT / 'latency'
    store = Store(folder, conditions(args), weights)
    points = gathered(policy, plan(args), store, args.json)
    found = dict(rows=figures.rows(points), against_off=figures.against_off(points))
    if len(args.steps) > 1:
        found |= dict(by_steps=figures.by_steps(points), verdict=aims.few_steps(points))
    else:
        found |= dict(costs=figures.costs(points), verdict=aims.verdict(points))
    plot(points)
    if not args.json:
        show(found)
    guidance = dict(schedule=args.schedule, horizon=args.horizon, most=args.max_guidance)
    return dict(
        checkpoint=args.checkpoint or 'bundled',
        weights=weights,
        euler_steps=args.steps,
        conditions=asdict(store.conditions) | dict(guidance=guidance),
        **found,
    )


main = command('latency', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
