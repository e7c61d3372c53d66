"""Ablation of the five parts: missions in natural language with all parts on, then with each off.

Robots on one engine, in virtual time, carry out a mission each (drawn as in `benchmarks.mission`):
they query the scene, plan over their memory, act, ask whether a step is done, remember, and answer
the contract's prompts in addition. During the missions the process is killed, and another one
continues. Every row has the same scenes, missions and moments of the kill. All computation is
real. A unit of work takes the CPU time of the process as virtual time, in proportion to the time
of a chunk just before the run, so that one chunk takes the time in `settings.yaml`. The parts, and
what replaces each where it is off:

shared cache and batching  each question prefills its frame for itself, streams decode one by one
                           (chunks are batched as before: that is part of the scheduler)
capsules     a cold restart: the step that was cut off is planned again, and open questions are
             prefilled and asked again. Memory is read from the disk in both. The progress of the
             mission at its last step boundary is known, as if its client had recorded it
compression  streams read whole prefixes
KEEP         every plan computes all of its prompt
Kairos       first come, first served, and a static execution horizon

Columns: success, by the simulator's truth, with its Wilson interval; P95 of actions, from a
request to its chunk; tokens of finished answers per second; peak of the KV in use; time from a
restart (with the models already loaded) to the first chunk, and to a step in force.

Time counts: the scene continues while a robot waits, and a step or a mission that takes too long
has failed. Physics: a row can be no better than the policy, the scene queries and the planner
allow; a part that saves work on a device with time to spare saves time, not missions. With
`--rules` the robots execute the plans of the rules instead of the planner's; the planner still
computes every plan.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace

import torch

from benchmarks.common.command import BenchmarkError, command
from benchmarks.mission.__main__ import PLANNER
from benchmarks.whole import figures
from benchmarks.whole.measure import measure
from benchmarks.whole.settings import load_settings
from benchmarks.whole.ways import WAYS
from embodied_kv.model.planner_checkpoint import bundled_planner, load_planner
from training.evaluate import evaluation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this benchmark."""
    add = parser.add_argument
    add('--checkpoint', help='of the policy; else the bundled one')
    add('--planner', help='folder; else the bundled one')
    add('--rules', action='store_true', help="they plan, in the planner's place")
    add('--ways', nargs='+', choices=WAYS, default=list(WAYS))
    add('--missions', type=int, help='a multiple of the robots')
    add('--first', type=int, help='number of the first')
    add('--quick', action='store_true', help='few robots, a group, little time')


def run(args: argparse.Namespace) -> dict:
    """Measure, print the tables, and return all figures."""
    torch.set_num_threads(1)
    settings = load_settings(args.quick)
    given = dict(missions=args.missions, first=args.first)
    settings = replace(settings, **{n: v for n, v in given.items() if v is not None})
    if settings.missions < 1 or settings.missions % settings.robots:
        raise BenchmarkError(f'--missions is a multiple of {settings.robots}')
    try:
        policy = evaluation.load(args.checkpoint)
        planner = load_planner(args.planner or bundled_planner(PLANNER))
    except (ValueError, OSError) as error:
        raise BenchmarkError(str(error)) from error
    runs = measure(args.ways, settings, policy, planner, args.rules, args.json)
    if not args.json:
        figures.show(runs)
    return dict(
        quick=args.quick,
        rules=args.rules,
        checkpoint=args.checkpoint or 'bundled',
        planner=args.planner or 'bundled',
        settings=asdict(settings),
        rows=figures.rows(runs),
        work=figures.work(runs),
        differences=figures.differences(runs),
        missions={way: figures.missions(own) for way, own in figures.by_way(runs).items()},
    )


main = command('whole', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
