"""One run of 10 Hz control under an endless language backlog, and the loop without any work.

Knows the engine, its thread and their clock. Does not know which runs are compared.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import threading
import time
from concurrent.futures import Future
from contextlib import ExitStack, suppress

import numpy as np
import torch

from benchmarks.common import scene
from benchmarks.common.workers import Workers
from embodied_kv.capsule.registry import DevicePool, Registry
from embodied_kv.capsule.tiers import TierCapacities
from embodied_kv.config import preset
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.engine_thread import EngineThread
from embodied_kv.engine.fingerprint import fingerprint
from embodied_kv.engine.warmup import warm_up
from embodied_kv.engine_config import EngineConfig
from embodied_kv.kv.budget import OverBudgetError
from embodied_kv.kv.rows import OutOfRowsError
from embodied_kv.model.dtype import served
from embodied_kv.session.engine_part import EnginePart
from embodied_kv.session.robot_session import RobotSession
from embodied_kv.types import TextDelta

STREAMS, ANSWER = 4, 60  # streams at once, tokens of each
FIGURES = ('mean_euler', 'tokens_s', 'of_slack_pct', 'gave_way', 'compiled', 'load')
SNAPSHOT_EVERY = 1.03  # s; no multiple of the period, so that they fall on every moment of a frame
CAPACITIES = TierCapacities(device=256 * 2**20, host=256 * 2**20, policy='drop')  # newest stay


class Backlog:
    """Keeps `STREAMS` streams alive on the newest frames and counts their tokens."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.tokens, self._counted = engine, 0, {}

    def on_deltas(self, deltas: list[TextDelta]) -> None:
        for delta in deltas:
            if delta.reason == 'error':
                raise RuntimeError(f'stream {delta.stream} ended with an error: see the log')
            self.tokens += delta.tokens - self._counted.get(delta.stream, 0)
            self._counted[delta.stream] = delta.tokens
        self.refill()

    def refill(self) -> None:
        handle = self.engine.kv.frames.current()
        with suppress(OutOfRowsError, OverBudgetError):  # it is tried again with the next frame
            while handle is not None and len(self.engine.kv.streams.live()) < STREAMS:
                self.engine.open(handle, scene.QUERY, max_tokens=ANSWER)


class Snapshots(threading.Thread):
    """Takes a snapshot once a second. took: s of the engine thread, of each snapshot."""

    def __init__(self, engine: Engine, device: EngineThread) -> None:
        super().__init__(name='snapshots', daemon=True)
        registry = Registry(fingerprint(engine), CAPACITIES)
        DevicePool(registry, engine.kv.budget)
        self._capsules = RobotSession(EnginePart(engine), registry, device.call)
        self._over = threading.Event()
        self.took: list[float] = []
        self.bytes: list[int] = []

    def run(self) -> None:
        while not self._over.wait(SNAPSHOT_EVERY):
            capsule, seconds = self._capsules.snapshot(f'snapshot-{len(self.took)}')
            self.took.append(seconds)
            self.bytes.append(capsule.bytes)

    def stop(self) -> None:
        """Stop after the snapshot that is in progress."""
        self._over.set()
        self.join()

    def figures(self) -> dict[str, float]:
        """Return their number, mean MB, and ms of the engine thread."""
        return dict(
            count=len(self.took),
            mb=statistics.mean(self.bytes) / 1e6,
            p50_ms=statistics.median(self.took) * 1e3,
            max_ms=max(self.took) * 1e3,
        )


def sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def engine_config(**settings: object) -> EngineConfig:
    """Return the config of the serving engine; engines with the same one share compiled code."""
    return EngineConfig(rows=STREAMS + 6, streams=STREAMS, **settings)


def serve(
    args: argparse.Namespace, time_budget: bool, freeze: bool = False, kv_budget_mib: int = 0
) -> dict:
    """Run the engine once; return `late`, s from stamp to publication of each chunk, and figures.

    freeze: take a snapshot of the session once a second. kv_budget_mib: of all KV, these capsules
    included. Raises what any of its threads raises.
    """
    with Workers() as workers:
        return _serve(args, workers, time_budget, freeze, kv_budget_mib)


def _serve(
    args: argparse.Namespace,
    workers: Workers,
    time_budget: bool,
    freeze: bool,
    kv_budget_mib: int,
) -> dict:
    c = scene.with_views(served(preset(args.preset), args.device), args.views)
    engine = Engine(
        scene.FullPolicy.random(c, device=args.device),
        engine_config(
            time_budget=time_budget,
            threads=args.threads,
            compile=args.compile,
            kv_budget_mib=kv_budget_mib,
        ),
        period=args.period,
    )
    torch.set_num_threads(args.threads)
    warm_up(engine)
    backlog = Backlog(engine)
    device = EngineThread(engine, workers.watched(backlog.on_deltas))
    device.start()
    snapshots = Snapshots(engine, device) if freeze else None  # reads all weights
    published: dict[int, tuple[float, int]] = {}  # frame -> when, Euler steps
    busy: list[float] = []
    costs: list[float] = []  # of a decode step, as it changes over the run
    first = time.monotonic() + 4 * args.period

    def act(prefilled: Future, number: int, due: float) -> None:
        if prefilled.cancelled() or prefilled.exception() is not None:
            return
        lease = engine.kv.acquire(prefilled.result())

        def publish(done: Future) -> None:
            lease.release()
            if done.cancelled() or done.exception() is not None:
                return
            if done.result() is not None:
                published[number] = time.monotonic() - due, done.result().steps
                busy.append((done.result().prefill_ms + done.result().denoise_ms) / 1e3)

        workers.watch(device.denoise(lease, due + args.period)).add_done_callback(publish)

    with ExitStack() as running:
        running.callback(device.stop)
        if snapshots is not None:
            snapshots.start()
            running.callback(snapshots.stop)
        for number in range(args.deadlines):
            due = first + number * args.period
            sleep_until(due)
            frame = scene.observation(
                engine.policy.config, number % 50, period=due + args.period - time.monotonic()
            )
            workers.check()
            workers.watch(device.prefill(frame, lambda f, n=number, d=due: act(f, n, d)))
            workers.watch(device.call(backlog.refill))
            costs.append(engine.latency.median('decode', STREAMS))
        sleep_until(first + args.deadlines * args.period)
    workers.check()
    step = statistics.mean(costs)
    slack = args.deadlines * args.period - sum(busy)
    return dict(
        late=[when for when, _ in published.values()],
        mean_euler=statistics.mean([steps for _, steps in published.values()] or [0]),
        tokens_s=backlog.tokens / (args.deadlines * args.period),
        of_slack_pct=100 * backlog.tokens / (slack / step * STREAMS),
        snapshots=None if snapshots is None else snapshots.figures(),
        gave_way=sum(engine.kv.budget.evictions.values()),
        compiled=len(engine.graphs.compiled_names),
        load=os.getloadavg()[0],
    )


def empty(args: argparse.Namespace) -> dict:
    """Run the loop without any work: how late this machine wakes a sleeping thread."""
    late = []

    def loop() -> None:
        first = time.monotonic() + args.period
        for number in range(args.deadlines):
            sleep_until(first + number * args.period)
            late.append(time.monotonic() - first - number * args.period)

    with Workers():
        thread = threading.Thread(target=loop)
        thread.start()
        thread.join()
    return dict(late=late, load=os.getloadavg()[0])


def figures(run: str, args: argparse.Namespace, late: list[float], **more: object) -> dict:
    """Return the figures of a run whose chunks came `late` s after their stamps.

    A chunk that is absent is a miss. gave_way: evictions of KV under one budget. compiled:
    computations that run compiled. load: of the whole machine, in the minute before the end of the
    run.
    """
    missed = args.deadlines - sum(when <= args.period for when in late)
    known = late or [math.nan]  # no chunk came
    return dict(
        run=run,
        deadlines=args.deadlines,
        misses=missed,
        miss_pct=100 * missed / args.deadlines,
        absent=args.deadlines - len(late),
        p50_ms=float(np.percentile(known, 50)) * 1e3,
        p99_ms=float(np.percentile(known, 99)) * 1e3,
        max_ms=max(known) * 1e3,
        **{n: more.get(n, 0.0) for n in FIGURES},
    )
