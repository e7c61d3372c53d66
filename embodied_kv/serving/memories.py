"""Memories that a policy server keeps for robots without a model, by name.

Calls may wait for files and for the engine's thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from embodied_kv.engine.engine_thread import EngineThread
from embodied_kv.errors import ErrorCode
from embodied_kv.kv.budget import KvBudget
from embodied_kv.memory.encoder import encoder
from embodied_kv.memory.segment import RobotMemoryError
from embodied_kv.model.planner_checkpoint import load_planner
from embodied_kv.parameter import parameter
from embodied_kv.planning.config import MemoryParams, PlanningConfig
from embodied_kv.planning.planner_rows import PlannerRows
from embodied_kv.planning.planning import Planning, open_planning

T = TypeVar('T')
UNUSED = 60.0  # s without a request after which another memory may take a row
UNITS = 16  # maximum number of units whose KV one request precomputes


@dataclass(frozen=True)
class MemoryConfig:
    """Parameters `memory.NAME` of a policy server, in addition to those of a robot's memory."""

    enabled: bool = parameter(False, 'Keep the memory of robots without a model, and plan with it')
    planner_rows: int = parameter(
        8, "Rows of the planner's KV: memories that are in use at a time", range=(1, 4096)
    )


@dataclass(eq=False)
class _Memory:
    planning: Planning
    close: Callable[[], None]
    plans: threading.Lock = field(default_factory=threading.Lock)  # held while it plans
    used: float = field(default_factory=time.monotonic)
    users: int = 0


class Memories:
    """Open memories, at most as many as the planner has rows; the others are only on the disk.

    Args:
        path: Folder of the planner. Raises as `load_planner`.
        params: Where memories are kept.
        config: Parameters of planning.
        rows: Number of rows of the planner.
        device: The engine's thread, on which the planner computes in short steps.
        kv_budget: The KV budget of the device.
    """

    def __init__(
        self,
        path: Path,
        params: MemoryParams,
        config: PlanningConfig,
        rows: int,
        device: EngineThread,
        kv_budget: KvBudget,
    ) -> None:
        self._ending = ExitStack()
        if not params.storage_directory:  # a memory that is closed to make room must not be lost
            root = self._ending.enter_context(TemporaryDirectory())
            params = replace(params, storage_directory=root)
        self._params, self._config, self._device = params, config, device
        self._planner = load_planner(path, device=device.engine.config.device)
        self._encoder, self._kv_budget = encoder(params.text_encoder), kv_budget
        self._rows = PlannerRows(self._planner.model, rows)
        self._most, self._lock = rows, threading.Lock()  # the lock guards `_open`
        self._open: dict[str, _Memory] = {}
        self._is_ending = False
        kv_budget.join(self._rows)

    def end_plans(self) -> None:
        """End all plans after their present step; their callers get RobotMemoryError."""
        self._is_ending = True

    def close(self) -> None:
        """Close all memories; their segments are always on the disk."""
        with self._lock:
            memories = list(self._open.values())
            self._open.clear()
        for memory in memories:
            with memory.plans:
                memory.close()
        self._kv_budget.leave(self._rows)
        self._ending.close()

    def call(self, name: str, verb: str, given: Mapping[str, object]) -> dict[str, object]:
        """Return the result of a verb of VERBS on a memory, as plain values.

        Raises ValueError, RobotMemoryError.
        """
        memory = self._enter(name)
        try:
            if verb not in ('plan', 'warm'):
                return VERBS[verb](memory.planning, **given)
            # Requests never wait here: a client that reconnects would block another worker.
            if not memory.plans.acquire(blocking=False):
                raise RobotMemoryError(
                    'a memory must make one plan at a time (got another one); wait for that plan',
                    ErrorCode.NO_ROOM,
                )
            try:
                return VERBS[verb](memory.planning, **given)
            finally:
                memory.plans.release()
        finally:
            with self._lock:
                memory.users -= 1
                memory.used = time.monotonic()

    def _enter(self, name: str) -> _Memory:
        with self._lock:
            if name not in self._open:
                self._make_room()
                with ExitStack() as undo:
                    memory = open_planning(
                        self._planner,
                        self._encoder,
                        self._params,
                        self._config,
                        name,
                        partial(self._step, f'plan {name}'),
                        self._kv_budget,
                        self._rows,
                        self._device.engine.budget.longest,
                    )
                    planning = undo.enter_context(memory)
                    self._open[name] = _Memory(planning, undo.pop_all().close)
            self._open[name].users += 1
            return self._open[name]

    def _make_room(self) -> None:
        if len(self._open) < self._most:
            return
        idle = {n: m for n, m in self._open.items() if not m.users}
        oldest = min(idle, key=lambda n: idle[n].used, default='')
        if not oldest or time.monotonic() - idle[oldest].used < UNUSED:
            raise RobotMemoryError(
                f'memories in use must be at most {self._most} (got one more); raise planner_rows',
                ErrorCode.NO_ROOM,
            )
        self._open.pop(oldest).close()

    def _step(self, client: str, work: Callable[[], T]) -> T:
        if self._is_ending:
            raise RobotMemoryError('the policy server is ending', ErrorCode.NOT_ACTIVE)
        return self._device.background(work, client).result()


def _query(planning: Planning, question: str, count: int, kind: str) -> dict[str, object]:
    matches = planning.query(question, count, kind)
    return {'matches': [asdict(match) | {'score': float(match.score)} for match in matches]}


def _plan(
    planning: Planning, question: str, tokens: int, count: int, method: str
) -> dict[str, object]:
    plan = planning.plan(question, tokens or None, count or None, method or None)
    return {'plan': asdict(plan)}


VERBS: Mapping[str, Callable[..., dict[str, object]]] = {
    'upsert': lambda planning, segments: {
        'changes': [asdict(change) for change in planning.upsert(*map(tuple, segments))]
    },
    'remove': lambda planning, id: {'change': asdict(planning.remove(id))},
    'query': _query,
    'plan': _plan,
    'stats': lambda planning: {'stats': asdict(planning.stats())},
    'advance': lambda planning: {'changed': bool(planning.advance())},
    'warm': lambda planning, units: {
        'units': planning.warm(min(units, UNITS)) if planning.has_room else 0
    },
    'tasks': lambda planning: {'tasks': planning.tasks()},
}
