"""Ablation of the five parts: missions in natural language with all parts on, then with each off.

Robots on one engine, in virtual time, carry out a mission each (drawn as in `benchmarks.mission`):
they query the scene, plan over their memory, act, ask whether a step is done, remember, and answer
the contract's prompts in addition. During the missions the process is killed, and another one
continues. Every row has the same scenes, missions and moments of the kill. All computation is
real, but its time is not measured: each unit of work takes the time that `costs.yaml` states for
its kind and size, so that equal runs have equal results on any machine and under any load.
`--measure-costs` measures that file. The parts, and what replaces each where it is off:

shared cache and batching  each question prefills its frame for itself, streams decode one by one
                           (chunks are batched as before: that is part of the scheduler)
capsules     a cold restart: the step that was cut off is planned again, and open questions are
             prefilled and asked again. Memory is read from the disk in both. The progress of the
             mission at its last step boundary is known, as if its client had recorded it
compression  streams read whole prefixes
KEEP         every plan computes all of its prompt
Kairos       first come, first served, and a static execution horizon

`--heavy` is a regime in which each part can pay: frames of 580 tokens, narrations of 30 to 60
tokens, a KV budget, and the costs of a planner of 40 million parameters over 200 segments (the
rules plan, and a stand-in with the same KV retrieves, loads and selects). `settings.yaml` gives
all values, and which differences can be resolved.

Time counts: the scene continues while a robot waits, and a step or a mission that takes too long
has failed. Physics: a row can be no better than the policy, the scene queries and the planner
allow; a part that saves work on a device with time to spare saves time, not missions. With
`--rules` the robots execute the plans of the rules instead of the planner's; the planner still
computes every plan. With `--out` each group is stored once it is finished, and another run with
the same file continues.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path

import torch

from benchmarks.common.command import BenchmarkError, command
from benchmarks.common.weights import weights_of
from benchmarks.mission.__main__ import PLANNER
from benchmarks.whole import figures
from benchmarks.whole.calibrate import measure_costs
from benchmarks.whole.costs import load_costs
from benchmarks.whole.measure import Results, conditions, measure
from benchmarks.whole.planners import STAND_IN, untrained
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
    add('--heavy', action='store_true', help='long frames and answers, a large planner')
    add('--out', type=Path, help='file of finished groups, which a later run continues')
    add('--measure-costs', action='store_true', help='measure costs.yaml, and end')
    add('--quick', action='store_true', help='few robots, a group, little time')


def run(args: argparse.Namespace) -> dict:
    """Measure, print the tables, and return all figures."""
    torch.set_num_threads(1)
    if args.measure_costs:
        return measure_costs()
    settings = load_settings(args.quick, args.heavy)
    given = dict(missions=args.missions, first=args.first, rules=args.rules or None)
    settings = replace(settings, **{n: v for n, v in given.items() if v is not None})
    if settings.missions < 1 or settings.missions % settings.robots:
        raise BenchmarkError(f'--missions must be a multiple of {settings.robots}')
    try:
        policy = evaluation.load(args.checkpoint or str(weights_of(settings.policy)))
        folder = args.planner or bundled_planner(PLANNER)
        planner = untrained(STAND_IN) if args.heavy else load_planner(folder)
        costs = load_costs(policy.config.name, settings.planner)
    except (ValueError, OSError) as error:
        raise BenchmarkError(str(error)) from error
    weights = dict(checkpoint=args.checkpoint, planner=args.planner)
    others = {name: value for name, value in weights.items() if value is not None}
    results = Results(args.out, conditions(settings, costs) | others)
    runs = measure(args.ways, settings, policy, planner, costs, results, args.json)
    if not args.json:
        figures.show(runs)
    return dict(
        quick=args.quick,
        heavy=args.heavy,
        checkpoint=args.checkpoint or 'bundled',
        planner=args.planner or 'bundled',
        settings=asdict(settings),
        costs=asdict(costs),
        rows=figures.rows(runs),
        work=figures.work(runs),
        differences=figures.differences(runs),
        missions={way: figures.missions(own) for way, own in figures.by_way(runs).items()},
    )


main = command('whole', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
