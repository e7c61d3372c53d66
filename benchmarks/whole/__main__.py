"""The leave-one-out table: missions in words, with all five parts on, then with each of them off.

Robots on one engine, in virtual time, carry out a mission each (as `benchmarks.mission` draws
them): they look, plan over their memory, act, ask whether it is done, remember, and meanwhile
answer the contract's prompts. In the midst of their missions the process is killed, and another
goes on. Every row has the same scenes, missions and moments of kill. All of it is computed; a
unit of work takes of virtual time what it took of the process's own, in proportion to what a
chunk took just before the run, so that one takes what `settings.yaml` says. What is off, and what
is done in its place:

shared cache and batching  each question has its frame prefilled for itself, streams decode one by
                           one (chunks are batched as before: that is the scheduler's)
capsules     a cold restart: the step that was cut off is planned anew, and what was being answered
             is prefilled and asked again. Memory is read from the disk in both. How far the
             mission was at its last boundary is known, as if its client had noted it
compression  streams read whole prefixes
KEEP         every plan computes all of its prompt
Kairos       first come, first served, and a static execution horizon

Columns: success, by the simulator's truth, with its Wilson interval; P95 of actions, from a
request to its chunk; tokens of finished answers per second; KV in use at the peak; time from a
restart (the models are loaded by then) to the first chunk, and to a step in force.

Time counts: the scene goes on while anybody waits, and a step or a mission that takes too long
has failed. Physics: a row can be no better than the policy, the eyes and the planner let it; a
part that saves work on a device with time to spare saves time, not missions. With `--rules` they
say what is done in the planner's place, which computes every plan all the same.
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
    """Of this benchmark."""
    add = parser.add_argument
    add('--checkpoint', help='of the policy; else the bundled one')
    add('--planner', help='folder; else the bundled one')
    add('--rules', action='store_true', help="they plan, in the planner's place")
    add('--ways', nargs='+', choices=WAYS, default=list(WAYS))
    add('--missions', type=int, help='a multiple of the robots')
    add('--first', type=int, help='number of the first')
    add('--quick', action='store_true', help='few robots, a group, little time')


def run(args: argparse.Namespace) -> dict:
    """Measures, prints the tables, and returns all figures."""
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
