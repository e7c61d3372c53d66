"""The sessions of all clients on one engine, served by the dispatcher of a fleet.

Knows the fleet's server, the rows that are kept, and the device thread. Does not know sockets: a
session begins with `open` and ends with `close`, whoever holds it. Every answer is a promise; but
for `snapshot`, `restore` and `reset`, which wait for the engine's thread, nothing here waits.
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
from dataclasses import replace
from functools import partial
from typing import TypeVar

from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import TierCapacities
from embodied_kv.control.execution_horizon import judged, parse
from embodied_kv.engine.engine import Engine
from embodied_kv.engine.engine_thread import EngineThread
from embodied_kv.engine.fingerprint import fingerprint
from embodied_kv.fleet.dispatcher import Dispatcher
from embodied_kv.fleet.engines import EngineState
from embodied_kv.fleet.profile import Profile
from embodied_kv.fleet.protocol import Receipt, Request, Verdict
from embodied_kv.serving.batch import KeptRows, Late
from embodied_kv.serving.fleet_server import FleetServer, Result, ServedChunk
from embodied_kv.serving.in_time import TimedObservation, serve_in_time
from embodied_kv.serving.remote import RemoteEngine
from embodied_kv.serving.scheduling import SchedulingConfig
from embodied_kv.serving.served_part import ServedPart
from embodied_kv.serving.shares import StreamShares
from embodied_kv.serving.slack import Slack
from embodied_kv.serving.websocket.answers import Answers, Text
from embodied_kv.serving.websocket.capsule_budget import CapsuleBudget
from embodied_kv.serving.websocket.config import MIB
from embodied_kv.serving.websocket.dialect import Refused
from embodied_kv.serving.websocket.session import Session
from embodied_kv.session.robot_session import RobotSession
from embodied_kv.throttle import Throttled
from embodied_kv.types import ActionChunk, TextDelta

T = TypeVar('T')
HERE, CLOUD = 'here', 'cloud'  # the engine of this process, and one in a Ray cluster
GIB = 2**30
LARGE = GIB  # bytes of weights: about a second of a CPU
LATE = 'no chunk could be made by the deadline'
WHOLE = parse('whole')

log = logging.getLogger(__name__)


class Missed(TimeoutError):
    """No chunk could be made by the deadline that the request named."""


class Sessions:
    """Any number of clients, each with a row of its own once it has been served.

    engine, device: that serve them. profile: seconds of the engine's batches. kept: how many named
    sessions are remembered after their end. capsule_mib, all_capsules_mib: of the capsules of
    each, and of all together. Both are divided by tenant, see `divide`. fingerprint: of the
    engine, where it is known: capsules say it. scheduling: the order in which they are served.
    cloud: one more engine, which serves a batch where it answers sooner. server: makes the server
    that drives the dispatcher; one with another clock, for instance. Raises OSError where the
    trace cannot be written.
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
        self.engine, self._device, self._fingerprint = engine, device, fingerprint
        self._most_kept, self._capsule_mib = kept, capsule_mib
        say = Throttled(log.warning)
        most, kv_budget = all_capsules_mib * MIB, engine.kv.budget
        self._budget = CapsuleBudget(most, lambda line: say('capsule', line), kv_budget)
        self._rows, self._shares = KeptRows(engine), StreamShares(engine)
        self._answers = Answers(engine, device, self._rows, self._shares)
        self._lock = threading.Lock()  # over who is there
        self._open: dict[str, Session] = {}
        # named ones, the newest last, by tenant
        self._ended: dict[str, OrderedDict[str, Session]] = {'': OrderedDict()}
        self._numbers = itertools.count(1)
        self.slack = Slack(lambda now: self._server.slack(HERE, now))  # of chunks
        order = scheduling or SchedulingConfig()
        engines, serve = [EngineState(HERE, profile)], {HERE: self._serve}
        self._cloud = cloud
        if cloud is not None:
            engines.append(EngineState(CLOUD, cloud.profile, cloud.link))
            serve[CLOUD] = self._serve_elsewhere
        self._server = server(
            Dispatcher(order.order(self._account), engines, order.max_queue_delay),
            serve,
            self._deliver,
            trace_writer=order.trace_writer(engine.policy.config.action_dt),
            on_idle=self._on_idle,
            on_vanished=self._vanished,
        )

    def start(self) -> None:
        """From now on clients are served. Whoever has the engine's deltas tells them to `hear`.

        Where its fingerprint is not known every weight is read, once: no client waits for that.
        """
        self._fingerprint = self._fingerprint or _read_once(self.engine)
        self._budget.join()
        self.engine.budget.forecast = lambda now: self._server.slack(HERE, now)
        self._server.start()

    def stop(self) -> None:
        """Nobody is served any more; rows and streams are given back."""
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
        """These share what is kept from now on, each the same part; of others nothing is kept.

        What a tenant does removes sessions and capsules of its own alone.
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
        """Ended sessions of each tenant."""
        return max(1, self._most_kept // max(1, len(self._ended)))

    def _forget(self, tenant: str, left: int) -> None:
        """The oldest of that tenant, until so many are left. With the lock."""
        ended = self._ended[tenant]
        while len(ended) > left:
            self._budget.forget(ended.popitem(last=False)[0])

    def of_tenants(self) -> dict[str, dict[str, float]]:
        """Return what each tenant has, by its name."""
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

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the engine; '' before `start` where it was not given."""
        return self._fingerprint

    def hear(self, deltas: Sequence[TextDelta]) -> None:
        """What language said; on the device thread."""
        self._answers.hear(deltas)

    def values(self) -> Mapping[str, object]:
        """Counts, of the dispatcher and of those that are there."""
        return {
            **self._server.values(),
            'sessions': len(self._open),
            'capsule bytes': self._budget.bytes,
            'capsules given up': self._budget.given_up,
        }

    def fault(self) -> str:
        """Why nobody is served now, '' where all is well: whatever a probe restarts it for."""
        if not self._device.is_alive():
            return "the engine's thread has ended: the log says why"
        if not self._server.is_alive():
            return "the dispatcher's thread has ended: the log says why"
        if not self._server.dispatcher.engines[HERE].alive:
            return 'the engine failed, or owes an answer that is overdue'
        return ''

    # ------------------------------------------------------------------ who is there

    def open(self, name: str = '', account: Hashable = None, tenant: str = '') -> Session:
        """A session; one that was known by this name goes on. Raises Refused while it is held.

        account: whose requests are served in turn with those of others; its own by default.
        tenant: whose part of what is kept it takes; one of those of `divide`.
        """
        with self._lock:
            if name in self._open:
                raise Refused(f'session {name} is in use by another connection')
            session = self._ended.get(tenant, {}).pop(name, None) if name else None
            if session is None:
                session = Session(name or f'#{next(self._numbers)}', self._capsules)
                session.tenant = tenant
            session.account = session.name if account is None else account
            session.begin(session.next)
            self._open[session.name] = session
        self._shares.join(session.name)
        return session

    def close(self, session: Session) -> None:
        """Its client has gone: nothing more is made for it. Its row and its streams are free."""
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
        self._shares.leave(session.name)

    @staticmethod
    def _withdraw(session: Session) -> None:
        """Cancel the request of the session that waits, if there is one."""
        if session.waiting is not None:
            session.waiting.cancel()
        session.asked = None, 0.0

    # ------------------------------------------------------------------ what they want

    def infer(self, session: Session, seen: TimedObservation) -> Future[ServedChunk]:
        """Return a chunk, some time. seen: of this session's next round.

        Another instruction begins another task of the session; an execution of an earlier task
        is ignored. The future raises Refused, or Missed.
        """
        if seen.instruction != session.instruction:
            session.instruction = seen.instruction
            session.begin(seen.sequence)
        session.next = seen.sequence + 1
        execution = seen.execution
        is_ours = execution is not None and session.first <= execution.round < seen.sequence
        request = Request(
            robot=session.name,
            task=session.task,
            round=seen.sequence,
            stamp=seen.stamp / 1e9,
            execution_horizon=seen.horizon or WHOLE,
            observation_bytes=sum(i.nbytes for i in seen.images if i is not None) or 1,
            execution=execution if is_ours else None,
            within=max(0.0, seen.deadline - time.monotonic()),
        )
        session.asked = seen, time.monotonic()
        promise = session.waiting = Future()
        self._server.submit(request, seen)
        return promise

    def look(self, session: Session, seen: TimedObservation) -> Future[None]:
        """Prefill an observation in the slack of others; questions are about it from then on.

        No chunk is made of it. The future raises ValueError, and OutOfRows.
        """

        def prefill() -> None:
            (handle,) = self.engine.prefill([replace(seen, deadline=-math.inf)])
            self._rows.keep(self.engine.kv.acquire(handle))

        return self._on_device(session, prefill, self._device.background)

    def ask(
        self, session: str, question: str, max_tokens: int, evict: bool = True
    ) -> Future[Text]:
        """Return what the policy says about the newest chunk of the session of that name.

        It is decoded in the slack of others. evict: whether an older text of the session may end
        for it. The future raises ValueError.
        """
        return self._answers.ask(session, question, max_tokens, evict)

    def reset(self, session: Session) -> None:
        """As if it had just begun, but for its capsules. Waits for the engine's thread.

        A request that waits is cancelled, and the dispatcher expects no other one of the task.
        """
        self._withdraw(session)
        self._server.finish(session.name, session.task)
        session.begin()
        for stream in self._shares.of(session.name):
            self.engine.kv.streams.release(stream, 'cancelled')
        self._on_device(session, partial(self._rows.drop, session.name)).result()

    def _on_device(
        self,
        session: Session,
        work: Callable[[], T],
        submit: Callable[[Callable[[], T]], Future[T]] | None = None,
    ) -> Future[T]:
        """Run it on the engine's thread; Refused where the session has ended until then.

        submit: how, `EngineThread.call` by default.
        """
        task = session.task

        def checked() -> T:
            if self._open.get(session.name) is not session or session.task != task:
                raise Refused('the session has ended')
            return work()

        return (submit or self._device.call)(checked)

    def _capsules(self, session: Session) -> RobotSession:
        room = TierCapacities(self._capsule_mib * MIB, host=0, disk=0, policy='drop')
        device, call = self.engine.policy.model.device, partial(self._on_device, session)
        registry = Registry(self._fingerprint, room, device=device)
        self._budget.share(registry, session.name, session.tenant)
        part = ServedPart(self.engine, session.name, self._rows, self._shares)
        return RobotSession(part, registry, call)

    # ------------------------------------------------------------------ on other threads

    def _account(self, robot: str) -> Hashable:
        session = self._open.get(robot)
        return robot if session is None else session.account

    def _on_idle(self) -> None:
        self._device.wake()
        self.slack.opened()

    def _vanished(self, robot: str) -> None:
        """No batch from here on has it: its row goes after those that have."""
        self._device.call(partial(self._rows.drop, robot))

    def _serve(self, frames: Sequence[TimedObservation], overdue: float) -> Future[list[Result]]:
        """Each by its own deadline, whenever the dispatcher would rather have them back."""
        hand_on = partial(self._made, time.monotonic())
        return self._device.call(partial(serve_in_time, self.engine, frames, self._rows, hand_on))

    def _serve_elsewhere(
        self, frames: Sequence[TimedObservation], overdue: float
    ) -> Future[list[Result]]:
        """Serve by the other engine. Rows of earlier frames are no longer their newest ones."""
        self._device.call(lambda: [self._rows.drop(frame.robot) for frame in frames])
        return self._cloud(frames, overdue)

    def _made(self, sent: float, seen: TimedObservation, result: Result) -> None:
        """On the device thread: an answer goes out before the rest of its batch is served."""
        session = self._open.get(seen.robot)
        if session is None or not isinstance(result, (ActionChunk, Late)):
            return
        (frame, since), promise = session.asked, session.waiting
        if frame is not seen:
            return
        if seen.horizon is not None and isinstance(result, ActionChunk):
            try:
                result = judged(result, seen.horizon)
            except ValueError:
                return  # the dispatcher judges it as well, and reports this
        if not self._awaited(promise):
            return
        if isinstance(result, Late):
            promise.set_exception(Missed(LATE))
        else:
            promise.set_result(ServedChunk(result, queued=sent - since))

    def _awaited(self, promise: Future) -> bool:
        """Whether it is to be answered now: by whoever asks this first."""
        with self._lock:
            answered = promise.running() or promise.done()
            return not answered and promise.set_running_or_notify_cancel()

    def _deliver(self, robot: str, task: str, round: int, receipt: Receipt) -> None:
        """On the dispatcher's thread."""
        if receipt.verdict in (Verdict.QUEUED, Verdict.DUPLICATE):
            return
        session = self._open.get(robot)
        if session is None or (session.task, session.next - 1) != (task, round):
            return
        promise = session.waiting
        if not self._awaited(promise):
            return
        served: ServedChunk | None = receipt.answer.chunk if receipt.answer else None
        if served is not None and served.chunk is not None:
            promise.set_result(served)
        elif served is not None and served.late:
            promise.set_exception(Missed(LATE))
        else:
            promise.set_exception(Refused(receipt.message or 'the request is over'))


def _read_once(engine: Engine) -> str:
    """Its fingerprint; the log says where that takes long."""
    size = sum(p.numel() * p.element_size() for p in engine.policy.model.parameters())
    if size > LARGE:
        log.info('reading %.1f GiB of weights, once, for capsules', size / GIB)
    return fingerprint(engine)
