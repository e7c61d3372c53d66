"""Snapshots of a session that remembers many sentences: duration, and the wait of other threads.

Physics: memory stores its sentences as bytes that a snapshot shares and does not copy, so neither
the time on the engine thread nor any single call into Python's libraries grows with them. What
grows is the file: a checksum and a write of all bytes, which block neither the engine thread nor
the interpreter.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.capsule.figures import MB, WARM_UP, Stores
from benchmarks.common import scene
from embodied_kv.capsule.disk import Disk
from embodied_kv.capsule.tiers import Tier
from embodied_kv.engine.engine import Engine
from embodied_kv.memory.sentence_log import SentenceLog
from embodied_kv.model.planner_checkpoint import LoadedPlanner
from embodied_kv.planning.config import PlanningConfig
from embodied_kv.planning.memory_part import MemoryPart
from embodied_kv.planning.planning import Planning
from embodied_kv.session.robot_session import RobotSession

TICK = 2e-4  # s, sleep interval of the thread that shows how long others wait


def snapshots(
    engine: Engine, planner: LoadedPlanner, counts: Sequence[int], repeats: int, device: str
) -> list[dict[str, object]]:
    """Return a row for each number of sentences and each tier; ms, medians and minima.

    ms: the whole call. engine_ms: its part on the engine thread. cpu_ms: CPU time of the calling
    thread, independent of other load. wait_ms: the longest time that another thread of the process
    did not run during the call. mb: of the file. Measured with one torch thread, the engine
    default.
    """
    engine.prefill([scene.observation(engine.policy.config, 0)])
    with ExitStack() as opened:
        opened.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        folder = Path(opened.enter_context(TemporaryDirectory()))
        planning = opened.enter_context(Planning(planner, folder / 'memory', PlanningConfig()))
        session = Stores(engine, MemoryPart(planning), device).open(disk=Disk(folder / 'capsules'))
        rows = []
        for count in counts:
            known = (f'thing {i}: on shelf {i % 97}, seen by the robot' for i in range(count))
            planning.memory.log = SentenceLog({f'thing {i}': text for i, text in enumerate(known)})
            for tier in Tier:
                row = dict(sentences=count, tier=str(tier))
                rows.append(row | _taken(session, tier, repeats))
    return rows


def _taken(session: RobotSession, tier: Tier, repeats: int) -> dict[str, float]:
    times = dict(ms=[], engine_ms=[], cpu_ms=[], wait_ms=[])
    for _ in range(WARM_UP + repeats):
        with _longest_wait() as waits:
            began, of_core = time.perf_counter(), time.thread_time()
            capsule, of_engine = session.snapshot('many', None, tier)
            of_core, took = time.thread_time() - of_core, time.perf_counter() - began
        session.registry.drop('many')
        measured = took, of_engine, of_core, max(waits)
        for values, seconds in zip(times.values(), measured, strict=True):
            values.append(seconds * 1e3)
    row = dict(mb=capsule.bytes / MB)
    for name, values in times.items():
        row |= {name: statistics.median(values[WARM_UP:]), f'least_{name}': min(values[WARM_UP:])}
    return row


@contextmanager
def _longest_wait() -> Iterator[list[float]]:
    """Yield a list of the seconds between two moments at which another thread ran in the block."""
    waits, over = [], threading.Event()

    def tick() -> None:
        ran, before = False, time.perf_counter()
        while not (ran and over.is_set()):
            time.sleep(TICK)
            now, ran = time.perf_counter(), True
            waits.append(now - before)
            before = now

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        yield waits
    finally:
        over.set()
        thread.join()
