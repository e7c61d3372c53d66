"""Measures the unit costs of `costs.yaml`: medians of the process time of repeated units.

Knows engines, planners and sessions. Does not know missions. One thread, so process time equals
the time on a free core. A prefill of a plan is divided by its tokens: full recomputation gives the
cost of a token that a layer computes, and KEEP, less its computed tokens, that of a loaded one.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np
import yaml

from benchmarks.common import report
from benchmarks.common.weights import weights_of
from benchmarks.mission.__main__ import PLANNER
from benchmarks.whole.costs import COMPRESSED, MIB, PATH, WHOLE
from benchmarks.whole.mind import planning_config
from benchmarks.whole.planners import LARGE, household, untrained
from benchmarks.whole.process import engine_config
from benchmarks.whole.settings import Settings, load_settings
from benchmarks.whole.ways import WAYS
from embodied_kv.capsule.disk import Disk
from embodied_kv.capsule.reentry import SceneSummary
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier, TierCapacities
from embodied_kv.demo.sim.language import NARRATE
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.warmup import blank
from embodied_kv.kv.handle import KvHandle
from embodied_kv.model.planner_checkpoint import LoadedPlanner, bundled_planner, load_planner
from embodied_kv.model.policy import Policy
from embodied_kv.planning.memory_part import MemoryPart
from embodied_kv.planning.plan import Plan
from embodied_kv.planning.planning import Planning
from embodied_kv.serving.batch import KeptRows, serve
from embodied_kv.serving.stream_quota import ServedPart, StreamQuota
from embodied_kv.session.robot_session import RobotSession
from training.evaluate import evaluation

T = TypeVar('T')
ROBOT = 'robot'
REPEATS, PLANS = 9, 3  # of a unit, and of a plan
STREAMS = 1, 2, 4, 8, 16, 32  # of a decode step
STEPS = 12  # decode steps of a number of streams
SEGMENTS = 40  # in view of the bundled planner: a table and its history
HEADER = (
    '# Written by `python -m benchmarks.whole --measure-costs`; not by hand. In s, see costs.py.\n'
)


def measure_costs() -> dict:
    """Measure all costs, write them to `PATH`, and return them with the machine."""
    normal, heavy = load_settings(), load_settings(heavy=True)
    policies, planners = {}, {}
    for settings in (normal, heavy):
        policy = evaluation.load(str(weights_of(settings.policy)))
        policies[settings.policy] = _policy(policy, settings)
    large, bundled = untrained(LARGE), load_planner(bundled_planner(PLANNER))
    planners[normal.planner] = _planner(bundled, replace(normal, segments=SEGMENTS))
    planners[heavy.planner] = _planner(large, heavy)
    found = dict(policies=policies, planners=planners, capsules=_capsules(policy, large, heavy))
    found = {name: _rounded(costs) for name, costs in found.items()}
    machine = {name: str(fact) for name, fact in report.machine().items()}
    PATH.write_text(HEADER + yaml.safe_dump(dict(machine=machine) | found, sort_keys=False))
    return found


def _policy(policy: Policy, settings: Settings) -> dict:
    prefill: dict[str, dict[int, float]] = {}
    decode: dict[str, dict[int, float]] = {}
    steps: dict[int, float] = {}
    begins: list[float] = []
    choices: list[float] = []
    for name, way in {WHOLE: 'no compression', COMPRESSED: 'all'}.items():
        config = engine_config(settings, WAYS[way])
        config = replace(config, decode_batch_multiple=1, time_budget=False, kv_budget_mib=0)
        engine = Engine(policy, config)
        prefill[name], decode[name] = {}, {}
        for robots in range(1, settings.batch + 1):
            handles, prefill[name][robots] = _frames(engine, robots)
            steps[robots] = _denoise(engine, handles)
        for streams in (n for n in STREAMS if n <= settings.streams):
            taken = _decode(engine, streams)
            decode[name][streams] = statistics.median(taken['decode'])
            begins += taken['begin']
            choices += taken['choice'] if name == COMPRESSED else []
    begin, choice = statistics.median(begins), statistics.median(choices)
    return dict(prefill=prefill, euler_step=steps, begin=begin, choice=choice, decode=decode)


def _frames(engine: Engine, count: int) -> tuple[list[KvHandle], float]:
    """Prefill a batch of frames; return the last handles, and the median time."""
    frames = [replace(blank(engine), robot=str(i), deadline=-math.inf) for i in range(count)]
    made = [_timed(lambda: engine.prefill(frames)) for _ in range(REPEATS)]
    return made[-1][1], statistics.median(seconds for seconds, _ in made)


def _denoise(engine: Engine, handles: Sequence[KvHandle]) -> float:
    with ExitStack() as held:
        leases = [held.enter_context(engine.kv.acquire(handle)) for handle in handles]
        late = [math.inf] * len(leases)
        taken = [_timed(lambda: engine.denoise(leases, late))[0] for _ in range(REPEATS)]
    return statistics.median(taken) / engine.config.euler_steps


def _decode(engine: Engine, streams: int) -> dict[str, list[float]]:
    """Decode streams, each of its own frame; return the times by kind of unit."""
    taken: dict[str, list[float]] = dict(begin=[], choice=[], decode=[])
    frame = blank(engine)
    for i in range(streams):
        (handle,) = engine.prefill([replace(frame, robot=f'{streams} {i}', deadline=-math.inf)])
        engine.open(handle, NARRATE, max_tokens=60)
    while len(taken['decode']) < STEPS + 1 and (live := engine.kv.streams.live()):
        batch, is_alone = engine.next_batch()
        kind = ('begin' if batch[0].is_new else 'choice') if is_alone else 'decode'
        same = len(live) == streams and all(s.lease.is_copy == live[0].lease.is_copy for s in live)
        seconds, _ = _timed(engine.decode)
        if is_alone or (same and len(live[0].tokens) > engine.config.compression_after_tokens):
            taken[kind].append(seconds)
    for stream in engine.kv.streams.live():
        engine.cancel(stream.id)
    return taken


def _planner(planner: LoadedPlanner, settings: Settings) -> dict:
    """Return the costs of a planner over `settings.segments` facts; each plan follows a change."""
    full = [(plan, answer) for plan, _, answer in _plans(planner, settings, 'no keep')]
    keep = [(plan, fresh) for plan, fresh, _ in _plans(planner, settings, 'all')]
    layers = len(full[0][0].computed)
    token = statistics.median(_prefill(plan) / sum(plan.computed) for plan, _ in full)
    loads = [(_prefill(p) - token * sum(p.computed)) / sum(p.loaded) for p, _ in keep]
    units = [p.seconds_fresh / max(1, p.fresh) - token * layers * n for p, n in keep]
    answers = [(p.seconds - p.seconds_first_token) / max(1, n - 1) for p, n in full]
    return dict(
        layer_token=token,
        loaded_token=max(0.0, statistics.median(loads)),
        unit=max(0.0, statistics.median(units)),
        answer_token=statistics.median(answers),
    )


def _plans(
    planner: LoadedPlanner, settings: Settings, way: str
) -> Iterator[tuple[Plan, float, int]]:
    """Yield plans in process time, the mean tokens of their fresh units, and of their answers."""
    config = planning_config(settings, WAYS[way])
    facts = household(settings.segments)
    with (
        _process_time(),
        tempfile.TemporaryDirectory() as folder,
        Planning(planner, folder, config) as planning,
    ):
        planning.upsert(*map(astuple, facts))
        planning.advance(2 * config.group_stable_steps)
        if config.reuse_method != 'full':
            planning.warm()
        for number in range(PLANS):
            before = {*planning.memory.store.keys()}
            changed = replace(facts[-number - 1], text=f'day {number}: hold still')
            planning.upsert(astuple(changed))
            plan = planning.plan(f'what is next? {number}')
            keys = {*planning.memory.store.keys()} - before
            sizes = [sum(planning.memory.store.lengths(key)) for key in keys]
            answer = planning.last.answer if planning.last else ()
            yield plan, statistics.fmean(sizes) if sizes else 0.0, len(answer)


def _prefill(plan: Plan) -> float:
    return plan.seconds_first_token - plan.seconds_fresh


def _capsules(policy: Policy, planner: LoadedPlanner, settings: Settings) -> dict:
    """Return the s per MiB of a capsule with a frame and a plan, to the disk and from it."""
    engine = Engine(policy, replace(engine_config(settings, WAYS['all']), kv_budget_mib=0))
    kept, quota = KeptRows(engine), StreamQuota(engine)
    serve(engine, [replace(blank(engine), robot=ROBOT)], math.inf, kept)
    quota.join(ROBOT)
    config = planning_config(replace(settings, answer_tokens=1), WAYS['no keep'])
    with tempfile.TemporaryDirectory() as folder, Planning(planner, folder, config) as planning:
        planning.upsert(*map(astuple, household(settings.segments)))
        planning.plan('what is next?')
        part = ServedPart(engine, ROBOT, kept, quota)
        each = [_capsule(part, planning, Path(folder) / f'capsules-{n}') for n in range(PLANS)]
    return {verb: statistics.median(one[verb] for one in each) for verb in each[0]}


def _capsule(part: ServedPart, planning: Planning, folder: Path) -> dict[str, float]:
    """Take a capsule, and restore it from its file."""
    before = Registry('', TierCapacities(device=0, host=0), Disk(folder))
    session = RobotSession(part, before, _call)
    session.register(MemoryPart(planning))
    scene = SceneSummary(np.zeros(7), {}, 0, ROBOT)
    saved, (capsule, _) = _timed(lambda: session.snapshot('capsule', scene, Tier.DISK))
    before.close()
    after = Registry('', TierCapacities(device=0, host=0), Disk(folder))
    session.set_registry(after)
    restored, _ = _timed(lambda: session.restore('capsule', scene))
    after.close()
    mib = capsule.bytes / MIB
    return dict(snapshot=saved / mib, restore=restored / mib)


def _call(work: Callable[[], T]) -> Future[T]:
    done: Future[T] = Future()
    done.set_result(work())
    return done


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    began = time.process_time()
    found = work()
    return time.process_time() - began, found


@contextmanager
def _process_time() -> Iterator[None]:
    """Let the seconds of plans be process time."""
    with patch.object(time, 'perf_counter', time.process_time):
        yield


def _rounded(found: Any) -> Any:
    """Return figures with three significant digits."""
    if isinstance(found, dict):
        return {name: _rounded(value) for name, value in found.items()}
    return float(f'{found:.3g}')
