"""Many robots on one policy server: the effect of the scheduling order.

The tabletop policy on a CPU serves closed fleets of 1 to 32 simulated robots, each of which does
its tasks one after another. Requests have rendered images. The sessions of the policy server, its
dispatcher and its engine are the real ones, and compute every chunk; sockets and the encoding of
messages are left out. Scenes, tasks and starts are the same for all schedulers. Latency of a task:
from its first request to its success, or until its time is up. A robot that has done its tasks
repeats them, uncounted, until all robots have, so that the fleet keeps its size to the end.

Time is virtual (`lockstep`): a batch takes the time of the profile that was measured when the run
began, so all schedulers have the same engine, and neither MuJoCo nor a busy machine changes a
result. With --profile two runs agree to the digit. The robots send requests as the node `action`
of a robot without a model does, but are not that node, which runs on the steady clock.

Physics: an engine makes at most saturation / seconds(saturation) chunks a second. With an
execution horizon of H actions, and requests sent A actions ahead of its end, a robot that never
waits requests a chunk every (H - A) dt, so n robots request n / ((H - A) dt) a second. From n =
capacity (H - A) dt on the engine is saturated: robots wait until n / ((H - A) dt + wait) is the
capacity, and an order can only choose which. While all that wait fit into one batch there is
nothing to choose, and all orders are the same to the digit. The floor is the same task alone with
an idle engine; even there a robot stands still for its first chunk, and whenever a chunk takes
longer than A dt.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean

import torch

from benchmarks.common import report
from benchmarks.common.command import BenchmarkError, command
from benchmarks.fleet.serving import figures, measure, open_fleet
from benchmarks.fleet.serving.measure import ALONE, PAIRS, ROBOTS, STATIC, Plan
from embodied_kv.fleet import profile
from training.evaluate import evaluation

QUICK_ROBOTS, QUICK_TASKS = (2, 8), 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument('--robots', type=int, nargs='+', help=f'fleets; left out: {ROBOTS}')
    parser.add_argument('--quick', action='store_true', help='two small fleets, few tasks')
    parser.add_argument('--checkpoint', default='', help="file or folder, or 'random'")
    parser.add_argument('--profile', type=Path, help='charge by this file; else it is measured')
    parser.add_argument('--workload', help='an open fleet instead: tasks of this one arrive')
    parser.add_argument('--ways', nargs='+', choices=open_fleet.WAYS, help='of an open fleet')
    parser.add_argument('--draws', type=int, help='of its tasks and arrivals')
    parser.add_argument('--trace', default='', help='file for what one robot alone executes')


def open_run(args: argparse.Namespace) -> dict:
    """Run an open fleet in the requested ways, print the tables, and return all figures."""
    robots = QUICK_TASKS if args.quick else open_fleet.ROBOTS
    robots = args.robots[0] if args.robots else robots
    ways = tuple(dict.fromkeys(args.ways or open_fleet.WAYS))
    draws = (1 if args.quick else open_fleet.DRAWS) if args.draws is None else args.draws
    if not 1 <= draws <= open_fleet.MOST:
        raise BenchmarkError(f'--draws are 1 to {open_fleet.MOST}')
    try:
        found = open_fleet.measure(args.workload, robots, ways, draws, args.json)
    except ValueError as error:
        raise BenchmarkError(str(error)) from error
    if not args.json:
        open_fleet.show(found)
    return dict(quick=args.quick, ways={way: open_fleet.WAYS[way] for way in ways}, **found)


def run(args: argparse.Namespace) -> dict:
    """Run every fleet, print the tables, and return all figures."""
    robots = tuple(args.robots or (QUICK_ROBOTS if args.quick else ROBOTS))
    if min(robots) < 1:
        raise BenchmarkError('--robots are at least 1')
    if args.workload:
        return open_run(args)
    if args.ways or args.draws is not None:
        raise BenchmarkError('--ways and --draws are of an open fleet: they need --workload')
    plan = Plan(robots, QUICK_TASKS, 1) if args.quick else Plan(robots)
    torch.set_num_threads(1)
    charged = args.profile or report.OUT / 'fleet_serving.yaml'
    try:
        policy = evaluation.load(args.checkpoint or None)
        if args.profile is None:
            report.OUT.mkdir(parents=True, exist_ok=True)
            profile.write(measure.measured(policy), charged)
        found = measure.read(charged)
    except (ValueError, OSError) as error:
        raise BenchmarkError(str(error)) from error
    runs = measure.measure(plan, policy, found, args.trace, args.json)
    rows, pairs = figures.rows(runs, ALONE), figures.pairs(runs, PAIRS)
    engine = measure.physics(found, robots, float(STATIC.split(':')[1]), policy.config.action_dt)
    engine['computed_over_charged'] = fmean(r['computed'] for r in runs) / fmean(
        r['charged'] for r in runs
    )
    if not args.json:
        figures.show(rows, pairs, engine)
    figures.plot(rows, engine)
    return dict(
        quick=args.quick,
        checkpoint=args.checkpoint or 'bundled',
        ways=measure.WAYS,
        request_ahead=measure.REQUEST_AHEAD,
        engine=engine,
        rows=rows,
        pairs=pairs,
    )


main = command('fleet.serving', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
