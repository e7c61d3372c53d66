"""Compare the bytes that three threads make together with those that one thread makes alone.

The engine thread computes frames, chunks and language; a planner thread plans over memory and
loads stored KV; a third thread takes snapshots to the host and to the disk and reads them back.
Before that, the main thread does the same work by direct calls. Every action chunk, every row of
the planner, and every frame, stream and planner row in a capsule must have the same bytes.

In addition: the time of a token of the planner, alone and together; the time of a snapshot by
tier; and whether an engine can be built, which captures graphs, while another thread copies.

Physics: no two streams of a device are ordered unless one waits for the other. A missing wait
costs no time and raises no error: another thread reads the former content.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from benchmarks.common import report, scene
from benchmarks.common.command import add_device, command
from embodied_kv.capsule.capsule import Capsule, CapsuleError, FrozenPart
from embodied_kv.capsule.disk import Disk
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier, TierCapacities
from embodied_kv.config import PI05, PI05_SMALL, TINY, ModelConfig
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.engine_thread import EngineThread
from embodied_kv.engine.fingerprint import fingerprint
from embodied_kv.engine_config import EngineConfig
from embodied_kv.kv.handle import KvHandle
from embodied_kv.kv.transfer import copy_to
from embodied_kv.model.dtype import served
from embodied_kv.model.planner import PlannerConfig
from embodied_kv.model.planner_checkpoint import LoadedPlanner, random_planner
from embodied_kv.planning.config import PlanningConfig
from embodied_kv.planning.memory_part import MemoryPart
from embodied_kv.planning.plan import Plan
from embodied_kv.planning.planning import Planning
from embodied_kv.session.engine_part import EnginePart
from embodied_kv.session.robot_session import RobotSession
from embodied_kv.text import reason

CHUNK, PLAN, BUILT = 'action chunk', 'planner row', 'engine built beside copies'
IN_CAPSULE = 'frame', 'stream', 'planner row in use'  # that a capsule holds
TIERS = Tier.HOST, Tier.DISK
VOCABULARY = 512  # tokens of the planner
REPRODUCIBLE = ':4096:8'  # workspaces of cuBLAS, with which the same product has the same bytes


@dataclass(frozen=True)
class Size:
    """How much work there is.

    frames: that differ. segments: of memory. plans: in turn. answer: tokens of a stream. period:
    s between two frames. least: comparisons of each kind of content of a capsule, in each tier.
    seconds: after which no plan and no snapshot begins.
    """

    model: ModelConfig
    planner: PlannerConfig
    planning: PlanningConfig
    frames: int
    segments: int
    plans: int
    answer: int
    period: float
    least: int
    seconds: float


def size(dry: bool) -> Size:
    """Return a small policy and a planner as wide as that of pi05; tiny ones if `dry`."""
    if dry:
        backbone, numbers = (
            replace(TINY.backbone, vocab_size=VOCABULARY),
            dict(max_context_tokens=192),
        )
        model, amount = TINY, dict(frames=2, segments=4, plans=2, least=1, seconds=120.0)
    else:
        backbone = replace(PI05.backbone, mlp=4096, vocab_size=VOCABULARY)
        numbers, model = dict(max_context_tokens=1024), PI05_SMALL
        amount = dict(frames=6, segments=24, plans=12, least=20, seconds=25.0)
    dtype = 'float32' if dry else PI05.dtype
    planner = PlannerConfig(
        'threads', backbone, max_tokens=numbers['max_context_tokens'] + 128, dtype=dtype
    )
    planning = PlanningConfig(
        **numbers,
        reuse_method='keep',
        max_answer_tokens=8,
        recompute_ratio=0.5,
        min_group_similarity=0.9,
    )
    return Size(model, planner, planning, answer=24, period=0.02, **amount)


@dataclass
class Reference:
    """The results of one thread alone: by frame, and by the tokens of a prompt."""

    chunks: dict[int, Tensor] = field(default_factory=dict)
    frames: dict[int, Mapping[str, Tensor]] = field(default_factory=dict)
    streams: dict[int, Mapping[str, Tensor]] = field(default_factory=dict)
    plans: dict[tuple[int, ...], FrozenPart] = field(default_factory=dict)
    asked: list[Plan] = field(default_factory=list)


class Tally:
    """Count comparisons, and those that differ, by kind and tier; any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.compared: Counter[tuple[str, str]] = Counter()
        self.differ: Counter[tuple[str, str]] = Counter()
        self.asked: list[Plan] = []
        self.took: dict[Tier, list[float]] = {tier: [] for tier in TIERS}  # s, of snapshots

    def add(self, kind: str, tier: str, same: bool) -> None:
        """Count one comparison."""
        with self._lock:
            self.compared[kind, tier] += 1
            self.differ[kind, tier] += not same

    def least(self) -> int:
        """Return how often the rarest kind of a capsule's content was compared."""
        return min(self.compared[kind, tier.value] for kind in IN_CAPSULE for tier in TIERS)

    def rows(self) -> list[dict]:
        """Return a row of each kind; one that was never compared is not ok."""
        kinds = [(CHUNK, ''), (PLAN, ''), *((k, t.value) for t in TIERS for k in IN_CAPSULE)]
        return [
            dict(
                of=kind,
                tier=tier,
                compared=self.compared[kind, tier],
                differ=self.differ[kind, tier],
                ok=self.compared[kind, tier] > 0 and not self.differ[kind, tier],
                why='',
            )
            for kind, tier in kinds
        ]


def same(one: Tensor | None, other: Tensor | None) -> bool:
    """Return whether both tensors exist and have the same shape and bytes."""
    if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(*(x.cpu().contiguous().view(-1).view(torch.uint8) for x in (one, other)))


def on_host(tensors: Mapping[str, Tensor], start: str) -> dict[str, Tensor]:
    """Return copies of the tensors whose names begin so, by the rest of their names."""
    found = (
        (name.removeprefix(start), x) for name, x in tensors.items() if name.startswith(start)
    )
    return {name: x.detach().to('cpu', copy=True) for name, x in found}


def plan(planning: Planning, s: Size, number: int) -> Plan:
    """Store new facts, compute missing KV, and plan; no two prompts are equal."""
    news = [number] if number else range(s.segments)
    planning.upsert(*((f's{n}', 'object', f'Thing {n} is in place {n + number}.') for n in news))
    planning.warm()
    return planning.plan(f'Where is thing {number}?')


def prompt_of(facts: Mapping) -> tuple[int, ...]:
    """Return the tokens of the prompt of a frozen row."""
    return tuple(facts['row']['plan']['prompt'])


@torch.inference_mode()
def alone(engine: Engine, planner: LoadedPlanner, s: Size, folder: Path) -> Reference:
    """Do everything on this thread, one thing after the other."""
    found, part = Reference(), EnginePart(engine)
    for number in range(s.frames):
        (handle,) = engine.prefill([scene.observation(s.model, number)])
        with engine.kv.acquire(handle) as lease:
            (chunk,) = engine.denoise([lease], [math.inf])
        found.chunks[number] = torch.from_numpy(chunk.values.copy())
        engine.open(handle, scene.QUERY, max_tokens=s.answer)
        while engine.kv.streams.live():
            frozen = part.freeze().tensors  # the last one has all that a live stream may have
            engine.decode()
        found.frames[number] = on_host(frozen, 'row/0/')
        found.streams[number] = on_host(frozen, 'stream/0/')
    with Planning(planner, folder, s.planning) as planning:
        part = MemoryPart(planning)
        for number in range(s.plans):
            found.asked.append(plan(planning, s, number))
            frozen = part.freeze()
            kept = FrozenPart(on_host(frozen.tensors, 'row/'), frozen.facts)
            found.plans[prompt_of(frozen.facts)] = kept
    return found


class Together:
    """The same work on three threads, compared with a reference."""

    def __init__(self, engine: Engine, planner: LoadedPlanner, s: Size, reference: Reference):
        self.engine, self.planner, self.size, self.reference = engine, planner, s, reference
        self.tally, self.over, self.planned = Tally(), threading.Event(), threading.Event()
        self.ends = math.inf  # s, steady clock
        self.device = EngineThread(engine, lambda deltas: None)

    def run(self, folder: Path, registry: Registry) -> None:
        """Run the threads until enough was compared; raise what any of them raises."""
        self.device.start()
        self.ends = time.monotonic() + self.size.seconds
        try:
            with Planning(
                self.planner, folder, self.size.planning, step=self.step
            ) as planning, ThreadPoolExecutor(3) as pool:  # fmt: skip
                part = MemoryPart(planning)
                session = RobotSession(EnginePart(self.engine), registry, self.device.call)
                session.register(part)
                thinking = pool.submit(self.think, planning, part)
                freezing = pool.submit(self.freeze, session)
                acting = pool.submit(self.act)
                # The actions go on until the others are done.
                wait([thinking, freezing], return_when=FIRST_EXCEPTION)
                self.over.set()
                for work in (thinking, freezing, acting):
                    work.result()
        finally:
            self.device.stop()

    @property
    def is_over(self) -> bool:
        """Return whether no more work is to begin."""
        return self.over.is_set() or time.monotonic() > self.ends

    def step(self, work: Callable[[], object]) -> object:
        """Compute a piece of a plan on the device thread, as the memory node does."""
        return self.device.background(work).result()

    def act(self) -> None:
        """Make chunks of frames in turn, and open a stream if none is live."""
        for number in count():
            if self.over.is_set():
                return
            seen = scene.observation(self.size.model, number % self.size.frames)
            handle = self.device.prefill(seen).result()
            with self.engine.kv.acquire(handle) as lease:
                chunk = self.device.denoise(lease, math.inf).result()
                self.device.call(partial(self.ask, handle)).result()
            made = torch.from_numpy(chunk.values)
            self.tally.add(CHUNK, '', same(made, self.reference.chunks[seen.sequence]))
            time.sleep(self.size.period)

    def ask(self, handle: KvHandle) -> None:
        """Open a stream if there is none: a batch of several has other sums than one alone."""
        if not self.engine.kv.streams.live():
            self.engine.open(handle, scene.QUERY, max_tokens=self.size.answer)
            self.device.wake()

    def think(self, planning: Planning, part: MemoryPart) -> None:
        """Plan, and compare the row at the end of each plan."""
        for number in range(self.size.plans):
            if self.is_over:
                return
            self.tally.asked.append(plan(planning, self.size, number))
            frozen = self.device.call(torch.inference_mode()(part.freeze)).result()
            self.tally.add(PLAN, '', self.is_whole_plan(frozen))
        self.planned.set()

    def is_whole_plan(self, frozen: FrozenPart) -> bool:
        """Return whether a plan that ended has the row and the answer of the reference."""
        expected = self.reference.plans.get(prompt_of(frozen.facts))
        if expected is None or expected.facts['row'] != frozen.facts['row']:
            return False
        return all(same(frozen.tensors[f'row/{n}'], x) for n, x in expected.tensors.items())

    def freeze(self, session: RobotSession) -> None:
        """Take snapshots, to each tier in turn, and compare what is read back."""
        for number in count():
            if self.is_over or (self.planned.is_set() and self.tally.least() >= self.size.least):
                return
            tier, name = TIERS[number % len(TIERS)], f'capsule-{number}'
            self.tally.took[tier].append(report.once(partial(session.snapshot, name, tier=tier)))
            try:
                self.compare(session.registry.get(name, promote=Tier.DISK), tier.value)
            except CapsuleError:  # the file does not match its checksum: it has changed
                self.tally.add('frame', tier.value, False)
            session.registry.drop(name)

    def compare(self, capsule: Capsule, tier: str) -> None:
        """Count frames, the stream and the planner's row of a capsule."""
        facts, tensors = capsule.facts['session'], capsule.tensors
        numbers = [row['sequence'] for row in facts['rows']]
        for i, number in enumerate(numbers):
            expected = self.reference.frames[number]
            is_same = all(same(tensors[f'session/row/{i}/{n}'], x) for n, x in expected.items())
            self.tally.add('frame', tier, is_same)
        for i, stream in enumerate(facts['streams']):
            expected = self.reference.streams[numbers[stream['row']]]
            is_same = all(
                _begins(x, tensors[f'session/stream/{i}/{n}']) for n, x in expected.items()
            )
            self.tally.add('stream', tier, is_same)
        memory = capsule.facts['memory']
        if memory.get('row') is not None:
            plan = self.reference.plans.get(prompt_of(memory))
            is_same = plan is not None and all(
                _begins(x, tensors[f'memory/row/{n}']) for n, x in plan.tensors.items()
            )
            self.tally.add('planner row in use', tier, is_same)


def _begins(whole: Tensor, part: Tensor) -> bool:
    """Return whether KV [layers, heads, tokens, dim] begins with these tokens."""
    return same(whole[:, :, : part.shape[2]], part)


def token_ms(asked: Sequence[Plan], answer: int) -> float:
    """Return the median ms of a token after the first. answer: tokens of each."""
    return 1e3 * statistics.median((p.seconds - p.seconds_first_token) / answer for p in asked)


def built_beside_copies(device: str) -> dict:
    """Return a row: whether graphs are captured while another thread allocates and copies."""
    over, errors = threading.Event(), []

    def copy() -> None:
        try:
            while not over.is_set():
                copy_to(torch.ones(2**16, device=device), 'cpu')
        except Exception as error:  # whatever the driver raises
            errors.append(error)

    copying = threading.Thread(target=copy)
    copying.start()
    try:
        Engine(scene.FullPolicy.random(TINY, device=device), EngineConfig(rows=4, device=device))
    except Exception as error:
        errors.append(error)
    finally:
        over.set()
        copying.join()
    why = '; '.join(reason(error) for error in errors)
    return dict(of=BUILT, tier='', compared=1, differ=len(errors), ok=not errors, why=why)


def measured(s: Size, device: str, folder: Path) -> dict:
    """Do the work alone, then together, and return the figures."""
    c = served(s.model, device)
    config = EngineConfig(
        rows=8, streams=1, decode_tokens=64, time_budget=False, min_euler_steps=10, device=device
    )
    engine = Engine(scene.FullPolicy.random(c, device=device), config)
    planner = random_planner(s.planner, device=device)
    capacities = TierCapacities(device=0, policy='refuse')
    registry = Registry(fingerprint(engine), capacities, Disk(folder / 'capsules'), device=device)
    reference = alone(engine, planner, s, folder / 'alone')
    together = Together(engine, planner, s, reference)
    together.run(folder / 'together', registry)
    registry.close()
    tally, said = together.tally, s.planning.max_answer_tokens - 1
    rows, loaded = tally.rows(), sum(sum(p.loaded) for p in tally.asked)
    snapshots = [
        dict(tier=tier.value, count=len(took), p50_ms=1e3 * statistics.median(took or [0.0]))
        for tier, took in tally.took.items()
    ]
    return dict(
        ok=loaded > 0 and all(row['ok'] for row in rows),
        loaded=loaded,
        token_ms=token_ms(reference.asked, said),
        token_together_ms=token_ms(tally.asked, said),
        rows=rows,
        snapshots=snapshots,
        pinned=pinned(device),
    )


def pinned(device: str) -> dict[str, int]:
    """Return bytes of pinned memory that tensors have, and that the process took for them."""
    if device != 'cuda' or not hasattr(torch.cuda, 'host_memory_stats'):
        return {}
    stats = torch.cuda.host_memory_stats()
    return {name: stats.get(f'{name}_bytes.current', 0) for name in ('active', 'allocated')}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this stage."""
    add_device(parser)
    parser.add_argument('--dry', action='store_true', help='tiny models, few comparisons')


def run(args: argparse.Namespace) -> dict:
    """Compare, print the table, and return all figures."""
    os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', REPRODUCIBLE)  # read by the first product
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        found = measured(size(args.dry), args.device, Path(folder))
    if args.json:
        print(json.dumps(found), flush=True)  # should the next step end the process
    built = built_beside_copies(args.device)
    found['rows'].append(built)
    found['ok'] &= built['ok']
    if not args.json:
        report.show(f'three threads beside one, {args.device}', found['rows'])
        report.show('snapshots', found['snapshots'])
    return found


main = command('gpu.threads', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
