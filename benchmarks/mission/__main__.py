"""Missions in simulated time: success, steps and seconds, by planner, memory and policy.

Each mission has a scene with two places and two to four things, a history of 5 to 20 tasks, and a
natural-language request of one to three parts; every other mission needs memory. The policy
answers scene queries, acts, and reports whether a step is done. The simulator's truth judges only
the end: all things are where they should be, nothing else was moved, and the right answers were
given. Ways:

memory       the planner, with all that was remembered
no memory    the planner knows only what is seen when the mission begins
stale        memory has one thing in a wrong place, as if it had been moved without an update
full         as `memory`, but every plan is computed without stored KV
rules        the rules that the planner was trained on, in its place
expert       the scripted expert, which knows the truth, in place of the policy's actions
rules+expert both: the cost of scene queries alone
home         as `rules`, but the arm moves to its start pose before each scene query
back         as `rules`, but the arm moves back along its way after a failed step
home+expert  as `rules+expert`, with the start pose

The computation of the engine and the planner is charged to the scene's clock: the CPU time of the
process, in proportion to the time of a chunk just before each mission, which is charged as
CHUNK_SECONDS.

Physics: a mission cannot succeed more often than its steps. `product` is the product of the rates
at which this way's steps were done, by family, mean over missions; the rest of the failures is due
to scene queries, planning and checking.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

from benchmarks.common import clock, report
from benchmarks.common.command import BenchmarkError, command
from benchmarks.mission.cases import Case, draw_case, is_done, scene, true_table
from benchmarks.mission.robot import How, SimulatedRobot
from embodied_kv.demo.sim.table_memory import TABLE
from embodied_kv.demo.sim.tabletop import Tabletop
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.warmup import blank, warm_up
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.planner_checkpoint import LoadedPlanner, bundled_planner, load_planner
from embodied_kv.planning.config import PlanningConfig
from embodied_kv.planning.mission import Mission, MissionState
from embodied_kv.planning.planning import Planning
from embodied_kv.serving.batch import serve
from training.evaluate import evaluation
from training.evaluate.report import wilson
from training.planner.household import any_of
from training.planner.simulated_table import ROOM

MISSIONS, QUICK_MISSIONS = 200, 4
PLANNER = 'planner_missions'
CHUNK_SECONDS = 0.0246  # a frame and four Euler steps, eager, one thread (`benchmarks.parts`)
SPENT = 'acting', 'moving', 'looking', 'planning'  # s of a mission, by part
CALIBRATIONS = 9  # chunks; the median counts
WAYS = {
    'memory': How(),
    'no memory': How(memory='none'),
    'stale': How(memory='stale'),
    'full': How(method='full'),
    'rules': How(planner='rules'),
    'expert': How(policy='expert'),
    'rules+expert': How(planner='rules', policy='expert'),
    'home': How(planner='rules', views='home'),
    'back': How(planner='rules', back=True),
    'home+expert': How(planner='rules', policy='expert', views='home'),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this benchmark."""
    add = parser.add_argument
    add('--checkpoint', help='of the policy; else the bundled one')
    add('--planner', help='folder; else the bundled one')
    add('--ways', nargs='+', choices=WAYS, default=list(WAYS))
    add('--missions', type=int, help=f'default {MISSIONS}')
    add('--first', type=int, default=0, help='number of the first')
    add('--latency-ms', type=float, default=0.0, help='added, from an observation to its chunk')
    add('--memory-rows', type=int, default=0, help='earlier frames that the policy reads')
    add('--verbose', action='store_true', help='a line for every mission')
    add('--quick', action='store_true', help=f'{QUICK_MISSIONS} missions')


def run(args: argparse.Namespace) -> dict:
    """Measure, print the table, and return all figures."""
    torch.set_num_threads(1)
    count = args.missions or (QUICK_MISSIONS if args.quick else MISSIONS)
    if count < 1 or not 0 <= args.latency_ms < 1000:
        raise BenchmarkError('--missions is at least 1, --latency-ms 0 to 1000')
    policy = evaluation.load(args.checkpoint)
    planner = load_planner(args.planner or bundled_planner(PLANNER))
    size = dict(rows=6, streams=16, decode_tokens=96, euler_steps=4, min_euler_steps=4)
    size |= dict(memory_rows=args.memory_rows)
    engine = Engine(policy, EngineConfig(**size, time_budget=False), policy.config.action_dt)
    warm_up(engine)
    rows, missions, charged = [], {}, clock.ChargedTime()
    bar = Progress(console=Console(stderr=True), disable=args.json)
    with Tabletop(scene(policy.config.vision.image_size)) as table, bar:
        for way in args.ways:
            how = replace(WAYS[way], latency=args.latency_ms / 1e3)
            task = bar.add_task(way, total=count)
            found = []
            for number in range(args.first, args.first + count):
                calibrate(engine, charged)
                found.append(one(table, engine, planner, number, how, charged))
                if args.verbose:
                    print(way, found[-1], flush=True)
                bar.advance(task)
            rows.append(row(way, found))
            missions[way] = found
    if not args.json:
        note = 'causes: what was wrong first in missions that failed'
        report.show(f'{count} missions', rows, note)
    return dict(missions=count, first=args.first, rows=rows, each=missions)


def calibrate(engine: Engine, charged: clock.ChargedTime) -> None:
    """Charge work in proportion to the present time of a chunk, from now on."""
    chunk = [blank(engine)]
    took = [
        clock.seconds(lambda: serve(engine, chunk, math.inf), 'cpu') for _ in range(CALIBRATIONS)
    ]
    charged.calibrate(statistics.median(took), CHUNK_SECONDS)


def one(
    table: Tabletop,
    engine: Engine,
    planner: LoadedPlanner,
    number: int,
    how: How,
    charged: clock.ChargedTime,
) -> dict[str, object]:
    """Run a mission from its scene to its end, and return its row."""
    case = draw_case(table, number)
    engine.forget('')  # the frames of the last mission
    with (
        torch.inference_mode(),
        tempfile.TemporaryDirectory() as folder,
        Planning(planner, folder, PlanningConfig(reuse_method=how.method)) as planning,
    ):
        for fact in remembered(case, how):
            planning.advance()
            planning.upsert((fact.id, fact.kind, fact.text))
        robot = SimulatedRobot(
            table,
            engine,
            planning,
            case.mission,
            how,
            state=lambda: mission.state,
            truth=lambda: true_table(table.truth()),
            charged=charged,
        )
        mission = Mission(robot, MissionState(case.words))
        end = mission.run()
    account, truth = robot.account, table.truth()
    right = end.success == (case.ends == 'over') and is_done(case, truth, tuple(robot.said))
    return dict(
        number=number,
        words=case.words,
        needs_memory=case.needs_memory,
        success=right,
        why=end.why,
        cause='' if right else cause(account),
    ) | asdict(account)


def remembered(case: Case, how: How) -> list:
    """Return the facts that are known at the start of a mission."""
    if how.memory == 'none':
        return []
    facts = case.table.facts()
    if how.memory == 'stale':
        rng = np.random.default_rng((case.number, 1))
        name = any_of(rng, list(case.table.where))
        wrong = [TABLE, *(p for p in case.table.places if len(case.table.inside(p)) < ROOM)]
        others = [place for place in wrong if place != case.table.where[name]]
        moved = case.table.lie(name, any_of(rng, others)).facts() if others else facts
        facts = [fact for fact in moved if fact.kind != 'task' and fact.kind != 'note'] + [
            fact for fact in facts if fact.kind in ('task', 'note')
        ]
    return facts


def cause(account: object) -> str:
    """Return the first cause of a failure, as far as the counts show it."""
    if account.wrong_plans:
        return 'planner'
    if account.failed:
        return 'policy'
    return 'eyes' if account.wrong_beliefs else 'other'


def row(way: str, found: Sequence[dict]) -> dict[str, object]:
    """Return a row of the table."""
    done = sum(one['success'] for one in found)
    low, high = wilson(done, len(found))
    needing = [one for one in found if one['needs_memory']]
    causes = Counter(one['cause'] for one in found if one['cause'])
    return dict(
        way=way,
        n=len(found),
        success=done / len(found),
        low=low,
        high=high,
        product=product(found),
        needs_memory=sum(one['success'] for one in needing) / max(1, len(needing)),
        steps=float(np.mean([len(one['steps']) for one in found])),
        seconds=float(np.mean([sum(one[part] for part in SPENT) for one in found])),
        planning=float(np.mean([one['planning'] for one in found])),
        failed_steps=sum(one['failed'] for one in found),
        causes=', '.join(f'{name} {n}' for name, n in causes.most_common()),
    )


def product(found: Sequence[dict]) -> float:
    """Return the product of the success rates of a mission's steps, mean over missions."""
    steps = [step for one in found for step in one['steps']]
    rates = {
        family: float(np.mean([done for name, done in steps if name == family]))
        for family in {name for name, _ in steps}
    }
    each = [np.prod([rates[family] for family, _ in one['steps']]) for one in found]
    return float(np.mean(each))


main = command('mission', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
