"""The sessions of all clients on one engine, served by the dispatcher of a fleet.

A session begins with `open` and ends with `close`. Each answer is a future. Only `snapshot`,
`restore` and `reset` block, until the engine's thread has run them.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import TierCapacities
from embodied_kv.control.execution_horizon import parse
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.engine_thread import EngineThread
from embodied_kv.engine.fingerprint import fingerprint
from embodied_kv.fleet.dispatcher import Dispatcher
from embodied_kv.fleet.engines import EngineState
from embodied_kv.fleet.profile import Profile
from embodied_kv.fleet.protocol import Receipt, Request, Verdict
from embodied_kv.kv.decode_stream import DecodeStream
from embodied_kv.serving.batch import KeptRows, LateError, TimedObservation, serve_in_time
from embodied_kv.serving.fleet_server import FleetServer, Result, ServedChunk
from embodied_kv.serving.ray_engine import RemoteEngine
from embodied_kv.serving.scheduling import SchedulingConfig
from embodied_kv.serving.stream_quota import ServedPart, StreamQuota
from embodied_kv.serving.websocket.capsule_budget import CapsuleBudget
from embodied_kv.serving.websocket.config import MIB
from embodied_kv.serving.websocket.observation_parser import RefusedError
from embodied_kv.serving.websocket.session import Session
from embodied_kv.session.frame_memory_part import FrameMemoryPart
from embodied_kv.session.robot_session import RobotSession
from embodied_kv.throttle import Throttled
from embodied_kv.types import TextDelta

T = TypeVar('T')
HERE, CLOUD = 'here', 'cloud'  # the engine of this process, and that in a Ray cluster
GIB = 2**30
LARGE = GIB  # bytes of weights that a CPU reads in about a second
LATE = 'no chunk could be made by the deadline'
WHOLE = parse('whole')

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Text:
    """The text of an answer, its number of tokens, and the reason of its end (`TextDelta`)."""

    text: str
    tokens: int
    reason: str


@dataclass(frozen=True, eq=False)
class _Listener:
    promise: Future[Text]
    parts: list[str] = field(default_factory=list)


class Sessions:
    """The sessions of clients, each with a row once it has been served.

    Args:
        engine: The engine of this process.
        device: The thread of the engine.
        profile: The latency of its batches.
        kept: Number of named sessions that are remembered after their end, divided by tenant.
        capsule_mib: Maximum size (MiB) of the capsules of each session.
        all_capsules_mib: Maximum size (MiB) of all capsules, divided by tenant.
        fingerprint: The engine's fingerprint, for capsules; '' to compute it in `start`.
        scheduling: The order of service. Raises OSError if its trace cannot be written.
        cloud: An additional engine, for batches that it answers sooner.
        server: Creates the server, for example one with another clock.
    """

    def __init__(
        self,
        engine: Engine,
        device: EngineThread,
        profile: Profile,
        kept: int,
        capsule_mib: int,
        all_capsules_mib: float = math.inf,
        fingerprint: str = '',
        scheduling: SchedulingConfig | None = None,
        cloud: RemoteEngine | None = None,
        server: Callable[..., FleetServer] = FleetServer,
    ) -> None:
        self.engine, self._device, self.fingerprint = engine, device, fingerprint
        self._most_kept, self._capsule_mib = kept, capsule_mib
        warn = Throttled(log.warning)
        most, kv_budget = all_capsules_mib * MIB, engine.kv.budget
        self._budget = CapsuleBudget(most, lambda line: warn('capsule', line), kv_budget)
        self._rows, self._quota = KeptRows(engine), StreamQuota(engine)
        self._listeners: dict[int, _Listener] = {}  # by stream; on the device thread only
        self._lock = threading.Lock()  # guards `_open` and `_ended`
        self._open: dict[str, Session] = {}
        # named sessions by tenant, the newest last
        self._ended: dict[str, OrderedDict[str, Session]] = {'': OrderedDict()}
        self._numbers = itertools.count(1)
        order = scheduling or SchedulingConfig()
        engines, serve = [EngineState(HERE, profile)], {HERE: self._serve}
        if cloud is not None:
            engines.append(EngineState(CLOUD, cloud.profile, cloud.link))
            serve[CLOUD] = partial(self._serve_elsewhere, cloud)
        self._server = server(
            Dispatcher(order.order(self._account), engines, order.max_queue_delay),
            serve,
            self._deliver,
            trace_writer=order.trace_writer(engine.policy.config.action_dt),
            on_idle=device.wake,
            on_vanished=self._vanished,
        )

    def start(self) -> None:
        """Start to serve clients. The owner of the engine passes its deltas to `on_deltas`.

        Without a fingerprint each weight is read once here, so that no client waits for that.
        """
        self.fingerprint = self.fingerprint or _read_once(self.engine)
        self._budget.join()
        self.engine.budget.forecast = lambda now: self._server.idle_time(HERE, now)
        self._server.start()

    def stop(self) -> None:
        for session in list(self._open.values()):
            self.close(session)
        self._server.stop()
        self.engine.budget.forecast = None
        self._device.call(self._rows.clear).result()
        with self._lock:
            for tenant in self._ended:
                self._forget(tenant, 0)
        self._budget.leave()

    def divide(self, tenants: Sequence[str]) -> None:
        """Divide remembered sessions and capsules equally by tenant; drop those of other tenants.

        Requests of a tenant can only remove sessions and capsules of that tenant.
        """
        with self._lock:
            for gone in set(self._ended) - set(tenants):
                self._forget(gone, 0)
            self._ended = {t: self._ended.get(t, OrderedDict()) for t in tenants}
            for tenant in tenants:
                self._forget(tenant, self._part)
            self._budget.divide(len(tenants))

    @property
    def _part(self) -> int:
        return max(1, self._most_kept // max(1, len(self._ended)))

    def _forget(self, tenant: str, left: int) -> None:
        """Drop the oldest ended sessions of a tenant until `left` remain; requires the lock."""
        ended = self._ended[tenant]
        while len(ended) > left:
            self._budget.forget(ended.popitem(last=False)[0])

    def of_tenants(self) -> dict[str, dict[str, float]]:
        with self._lock:
            opened = Counter(session.tenant for session in self._open.values())
            return {
                tenant: {
                    'sessions': opened[tenant],
                    'ended_sessions': len(ended),
                    'capsule_bytes': self._budget.bytes_of(tenant),
                }
                for tenant, ended in self._ended.items()
            }

    def on_deltas(self, deltas: Sequence[TextDelta]) -> None:
        """Collect new text of answers; on the device thread."""
        for delta in deltas:
            listener = self._listeners.get(delta.stream)
            if listener is None:
                continue
            listener.parts.append(delta.text)
            if delta.finished:
                del self._listeners[delta.stream]
                if listener.promise.set_running_or_notify_cancel():
                    text = Text(''.join(listener.parts), delta.tokens, delta.reason)
                    listener.promise.set_result(text)

    def values(self) -> Mapping[str, object]:
        """Return the counts of the dispatcher, the cache, sessions and capsules."""
        kv = self.engine.kv.stats()
        return {
            **self._server.values(),
            'prefills shared': kv.prefills_shared,
            'seconds saved': self.engine.seconds_saved,
            'copies without room': kv.allocation_failures,
            'bytes saved': kv.bytes_saved,
            'sessions': len(self._open),
            'capsule bytes': self._budget.bytes,
            'capsules given up': self._budget.given_up,
        }

    def fault(self) -> str:
        """Return why no client can be served, for a liveness probe; '' if there is no fault."""
        if not self._device.is_alive():
            return "the engine's thread has ended; see the log"
        if not self._server.is_alive():
            return "the dispatcher's thread has ended; see the log"
        if not self._server.dispatcher.engines[HERE].alive:
            return 'the engine failed, or its answer is overdue'
        return ''

    def open(self, name: str = '', account: Hashable = None, tenant: str = '') -> Session:
        """Return a session; a remembered one of this name continues.

        Raises RefusedError while the session is open.

        Args:
            name: '' for an anonymous session.
            account: The account that the scheduler charges; the session's own by default.
            tenant: One of the tenants of `divide`.
        """
        with self._lock:
            if name in self._open:
                raise RefusedError(f'session {name} is in use by another connection')
            session = self._ended.get(tenant, OrderedDict()).pop(name, None) if name else None
            if session is None:
                session = Session(name or f'#{next(self._numbers)}', self._capsules)
                session.tenant = tenant
            session.account = session.name if account is None else account
            session.begin(session.next)
            self._open[session.name] = session
        self._quota.join(session.name)
        return session

    def close(self, session: Session) -> None:
        """End a session, and free its row and its streams."""
        with self._lock:
            del self._open[session.name]
            ended = self._ended.get(session.tenant)
            if ended is None or session.name.startswith('#'):
                self._budget.forget(session.name)
            else:
                ended[session.name] = session
                self._forget(session.tenant, self._part)
        self._withdraw(session)
        self._server.vanish(session.name)
        self._quota.leave(session.name)

    @staticmethod
    def _withdraw(session: Session) -> None:
        """Cancel the waiting request of the session, if there is one."""
        if session.waiting is not None:
            session.waiting.cancel()

    def infer(self, session: Session, frame: TimedObservation) -> Future[ServedChunk]:
        """Return a future of the chunk for the observation of the session's next round.

        Another instruction begins another task of the session; an execution of an earlier task is
        ignored. The future raises RefusedError or LateError.
        """
        if frame.instruction != session.instruction:
            session.instruction = frame.instruction
            session.begin(frame.sequence)
        session.next = frame.sequence + 1
        execution = frame.execution
        is_ours = execution is not None and session.first <= execution.round < frame.sequence
        request = Request(
            robot=session.name,
            task=session.task,
            round=frame.sequence,
            stamp=frame.stamp / 1e9,
            execution_horizon=frame.horizon or WHOLE,
            observation_bytes=sum(i.nbytes for i in frame.images if i is not None) or 1,
            execution=execution if is_ours else None,
            within=max(0.0, frame.deadline - time.monotonic()),
        )
        promise = session.waiting = Future()
        self._server.submit(request, frame)
        return promise

    def look(self, session: Session, frame: TimedObservation) -> Future[None]:
        """Prefill an observation in idle time, for questions; no chunk is computed.

        The future raises ValueError and OutOfRowsError.
        """

        def prefill() -> None:
            (handle,) = self.engine.prefill([replace(frame, deadline=-math.inf)])
            self._rows.keep(self.engine.kv.acquire(handle))

        background = partial(self._device.background, client=f'frame {session.name}')
        return self._on_device(session, prefill, background)

    def ask(
        self, session: str, question: str, max_tokens: int, evict: bool = True
    ) -> Future[Text]:
        """Return a future of the policy's answer about the newest frame of a session.

        The answer is decoded in idle time. A canceled future ends its stream. The future raises
        ValueError and StaleHandleError. `evict`: whether an older stream of the session may end
        for it.
        """
        promise: Future[Text] = Future()

        def start() -> None:
            if promise.cancelled():
                return
            handle = self._rows.newest(session)
            if handle is None:
                raise ValueError(
                    'a question must be about a frame (got none); send a request for actions '
                    'first, and check that engine.rows is enough for all clients'
                )
            with self._quota.room(session, ends=evict):
                stream = self.engine.open(handle, question, max_tokens=max_tokens)
            self._listeners[stream.id] = _Listener(promise)
            promise.add_done_callback(partial(self._end_if_cancelled, stream))

        def started(work: Future[None]) -> None:
            error = RuntimeError('the engine has ended') if work.cancelled() else work.exception()
            if error is not None and promise.set_running_or_notify_cancel():
                promise.set_exception(error)

        self._device.call(start).add_done_callback(started)
        return promise

    def _end_if_cancelled(self, stream: DecodeStream, promise: Future[Text]) -> None:
        if promise.cancelled():
            self.engine.kv.streams.release(stream, 'cancelled')
            self._device.wake()

    def reset(self, session: Session) -> None:
        """Reset a session, except its capsules; blocks until the engine's thread has run it.

        A waiting request is canceled, and the dispatcher expects no further one of the task.
        """
        self._withdraw(session)
        self._server.finish(session.name, session.task)
        session.begin()
        for stream in self._quota.of(session.name):
            self.engine.kv.streams.release(stream, 'cancelled')
        self._on_device(session, partial(self._forget_frames, session.name)).result()

    def _on_device(
        self,
        session: Session,
        work: Callable[[], T],
        submit: Callable[[Callable[[], T]], Future[T]] | None = None,
    ) -> Future[T]:
        """Run work on the engine's thread; RefusedError if the session or its task has ended."""
        task = session.task

        def checked() -> T:
            if self._open.get(session.name) is not session or session.task != task:
                raise RefusedError('the session must be open (got one that has ended)')
            return work()

        return (submit or self._device.call)(checked)

    def _capsules(self, session: Session) -> RobotSession:
        room = TierCapacities(self._capsule_mib * MIB, host=0, disk=0, policy='drop')
        device, call = self.engine.policy.model.device, partial(self._on_device, session)
        registry = Registry(self.fingerprint, room, device=device)
        self._budget.share(registry, session.name, session.tenant)
        part = ServedPart(self.engine, session.name, self._rows, self._quota)
        made = RobotSession(part, registry, call)
        if self.engine.config.memory_rows:
            made.register(FrameMemoryPart(self.engine, session.name))
        return made

    def _account(self, robot: str) -> Hashable:
        session = self._open.get(robot)
        return robot if session is None else session.account

    def _vanished(self, robot: str) -> None:
        """Drop the rows of a robot, after the batches that contain it, unless it is open again."""

        def drop() -> None:
            if robot not in self._open:
                self._forget_frames(robot)

        self._device.call(drop)

    def _forget_frames(self, robot: str) -> None:
        self._rows.drop(robot)
        self.engine.forget(robot)

    def _serve(self, frames: Sequence[TimedObservation], overdue: float) -> Future[list[Result]]:
        """Serve a batch, each observation by its own deadline, not by `overdue`."""
        return self._device.call(
            partial(serve_in_time, self.engine, frames, self._rows, self._server.made)
        )

    def _serve_elsewhere(
        self, cloud: RemoteEngine, frames: Sequence[TimedObservation], overdue: float
    ) -> Future[list[Result]]:
        """Serve a batch with the other engine, and drop the rows of earlier frames."""

        def drop() -> None:
            for frame in frames:
                self._rows.drop(frame.robot)

        self._device.call(drop)
        return cloud(frames, overdue)

    def _awaited(self, promise: Future) -> bool:
        """Return whether no other caller has answered, so that this one must."""
        with self._lock:
            answered = promise.running() or promise.done()
            return not answered and promise.set_running_or_notify_cancel()

    def _deliver(self, robot: str, task: str, round: int, receipt: Receipt) -> None:
        if receipt.verdict in (Verdict.QUEUED, Verdict.DUPLICATE):
            return
        session = self._open.get(robot)
        if session is None or (session.task, session.next - 1) != (task, round):
            return
        promise = session.waiting
        if promise is None or not self._awaited(promise):
            return
        served: ServedChunk | None = receipt.answer.chunk if receipt.answer else None
        if served is not None and served.chunk is not None:
            promise.set_result(served)
        elif served is not None and served.late:
            promise.set_exception(LateError(LATE))
        else:
            promise.set_exception(RefusedError(receipt.message or 'the request was replaced'))


def _read_once(engine: Engine) -> str:
    """Return the fingerprint; a log line announces a long computation."""
    size = sum(p.numel() * p.element_size() for p in engine.policy.model.parameters())
    if size > LARGE:
        log.info('reading %.1f GiB of weights, once, for capsules', size / GIB)
    return fingerprint(engine)
