"""The memories of robots that have no model: what they learnt, and plans with it, by name.

Knows planners, their rows and folders. Does not know sockets or sessions. All of it may wait, for
files and for the engine's thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from embodied_kv.engine.loop import DeviceThread
from embodied_kv.errors import ErrorCode
from embodied_kv.kv.plane import Plane
from embodied_kv.memory.encoder import encoder
from embodied_kv.memory.segment import MemoryFault
from embodied_kv.model.planner_checkpoint import load_planner
from embodied_kv.planning.config import MemoryParams, PlanningConfig
from embodied_kv.planning.planner_rows import PlannerRows
from embodied_kv.planning.planning import Planning, open_planning, planner_folder
from embodied_kv.serving.memory_config import MemoryConfig
from embodied_kv.serving.slack import Slack

T = TypeVar('T')
UNUSED = 60.0  # s without a request after which another memory may take the row of this one
UNITS = 16  # of a request for precomputed KV
SENT = 'text', 'whole', 'method', 'segments', 'tokens', 'memory', 'computed', 'loaded', 'fresh'
SENT += 'retries', 'hops', 'seconds_fresh', 'seconds_first_token', 'seconds'  # of a plan


@dataclass(eq=False)
class _Memory:
    """planning: open until `close`. plans: held while it plans or computes ahead."""

    planning: Planning
    close: Callable[[], None]
    plans: threading.Lock = field(default_factory=threading.Lock)
    used: float = field(default_factory=time.monotonic)
    users: int = 0


class Memories:
    """As many memories at a time as the planner has rows; others rest in their folders.

    path: of the planner. device: the engine's thread, on which the planner computes in short
    steps, in the slack of chunks. Raises as `load_planner`.
    """

    def __init__(
        self,
        path: Path,
        params: MemoryParams,
        config: PlanningConfig,
        rows: int,
        device: DeviceThread,
        slack: Slack,
        plane: Plane,
    ) -> None:
        self._params, self._config, self._device, self._slack = params, config, device, slack
        self._planner = load_planner(path, device=device.engine.config.device)
        self._encoder, self._plane = encoder(params.encoder), plane
        self._rows = PlannerRows(self._planner.model, rows)
        self._most = rows
        self._lock = threading.Lock()  # over `_open`
        self._open: dict[str, _Memory] = {}
        plane.join(self._rows)

    @classmethod
    def of(
        cls,
        kept: MemoryConfig,
        params: MemoryParams,
        config: PlanningConfig,
        planner: str,
        device: DeviceThread,
        slack: Slack,
        plane: Plane,
    ) -> Memories | None:
        """Return those of a server; None where none are kept.

        planner: of the contract. Raises ValueError, OSError.
        """
        if not kept.enabled:
            return None
        path = planner_folder(params.planner, planner)
        return cls(path, params, config, kept.planner_rows, device, slack, plane)

    def close(self) -> None:
        """Nothing that was remembered is lost without it."""
        with self._lock:
            memories = list(self._open.values())
            self._open.clear()
        for memory in memories:
            with memory.plans:
                memory.close()
        self._plane.leave(self._rows)

    def call(self, name: str, verb: str, given: Mapping[str, object]) -> dict[str, object]:
        """Return the result of a verb of VERBS on the memory of that name, in plain values.

        Raises ValueError, MemoryFault.
        """
        memory = self._enter(name)
        try:
            if verb not in ('plan', 'warm'):
                return VERBS[verb](memory.planning, **given)
            # No request waits here: a client that comes again would hold a worker each time.
            if not memory.plans.acquire(blocking=False):
                raise MemoryFault(
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
                self._open[name] = self._opened(name)
            memory = self._open[name]
            memory.users += 1
            return memory

    def _make_room(self) -> None:
        if len(self._open) < self._most:
            return
        idle = {n: m for n, m in self._open.items() if not m.users}
        oldest = min(idle, key=lambda n: idle[n].used, default='')
        if not oldest or time.monotonic() - idle[oldest].used < UNUSED:
            raise MemoryFault(
                f'memories in use must be at most {self._most} (got one more); raise planner_rows',
                ErrorCode.NO_ROOM,
            )
        self._open.pop(oldest).close()

    def _opened(self, name: str) -> _Memory:
        with ExitStack() as undo:
            planning = undo.enter_context(
                open_planning(
                    self._planner,
                    self._encoder,
                    self._params,
                    self._config,
                    name,
                    self._step,
                    self._plane,
                    self._rows,
                )
            )
            return _Memory(planning, undo.pop_all().close)

    def _step(self, work: Callable[[], T]) -> T:
        self._slack.wait()
        return self._device.background(work).result()


def _segment(segment: object) -> dict[str, object]:
    return {n: getattr(segment, n) for n in ('id', 'kind', 'text', 'version', 'step')}


def _change(change: object) -> dict[str, object]:
    made = {'segment': _segment(change.segment), 'changed': change.changed}
    return made | {'lost': list(change.lost)}


def _upsert(planning: Planning, segments: list) -> dict[str, object]:
    return {'changes': [_change(change) for change in planning.upsert(*map(tuple, segments))]}


def _remove(planning: Planning, id: str) -> dict[str, object]:
    return {'change': _change(planning.remove(id))}


def _query(planning: Planning, question: str, count: int, kind: str) -> dict[str, object]:
    matches = [
        {'segment': _segment(match.segment), 'score': float(match.score), 'static': match.static}
        for match in planning.query(question, count, kind)
    ]
    return {'matches': matches}


def _plan(
    planning: Planning, question: str, tokens: int, count: int, method: str
) -> dict[str, object]:
    plan = planning.plan(question, tokens or None, count or None, method or None)
    plain = {name: getattr(plan, name) for name in SENT}
    return {'plan': {n: list(v) if isinstance(v, tuple) else v for n, v in plain.items()}}


def _stats(planning: Planning) -> dict[str, object]:
    return {'stats': asdict(planning.stats())}


def _advance(planning: Planning) -> dict[str, object]:
    return {'changed': bool(planning.advance())}


def _warm(planning: Planning, units: int) -> dict[str, object]:
    return {'units': planning.warm(min(units, UNITS)) if planning.has_room else 0}


def _tasks(planning: Planning) -> dict[str, object]:
    return {'tasks': [list(task) for task in planning.tasks()]}


VERBS: Mapping[str, Callable[..., dict[str, object]]] = {
    'upsert': _upsert,
    'remove': _remove,
    'query': _query,
    'plan': _plan,
    'stats': _stats,
    'advance': _advance,
    'warm': _warm,
    'tasks': _tasks,
}
