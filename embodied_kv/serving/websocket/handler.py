"""One connection from its first message to its last: openpi's protocol, one request at a time.

A client affects only its own connection: it waits for its own turn, and its resources are freed
when it disconnects.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TypeVar, cast

import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.control.execution_horizon import AtMost
from embodied_kv.errors import CodedError, ErrorCode, code_of
from embodied_kv.kv.budget import OverBudgetError
from embodied_kv.kv.rows import OutOfRowsError
from embodied_kv.memory.segment import RobotMemoryError
from embodied_kv.planning.plan import PLAN_SECONDS
from embodied_kv.serving.batch import LateError, TimedObservation
from embodied_kv.serving.memories import Memories
from embodied_kv.serving.websocket import calls, codec
from embodied_kv.serving.websocket.accounts import Account, Bucket
from embodied_kv.serving.websocket.calls import Call
from embodied_kv.serving.websocket.config import MIB, ServerConfig
from embodied_kv.serving.websocket.metered_connection import MeteredConnection
from embodied_kv.serving.websocket.metrics import Metrics
from embodied_kv.serving.websocket.observation_parser import ObservationParser, RefusedError
from embodied_kv.serving.websocket.session import Session
from embodied_kv.serving.websocket.sessions import Sessions
from embodied_kv.text import LINE, reason, shown, trace
from embodied_kv.throttle import WINDOW, Throttled
from embodied_kv.types import ActionChunk

T = TypeVar('T')
BURST = 8  # warnings of a kind, of all clients, that are logged at once; others are counted
GOODBYE_SECONDS = 2.0  # time for a client to read the reason of the end, and then to close
RENAME_RATE, RENAME_BURST = 1.0, 8  # changes of a connection's session, per second and at once
ANSWER_SECONDS = 2.0  # time for the answer to a ping that protects a session without keys
ENVELOPE = 4096  # bytes of a message besides its capsule, at most
Reply = dict[str, object]

log = logging.getLogger(__name__)


class ClientLeftError(ConnectionError):
    """The client disconnected during its request."""


class SessionTakenError(ClientLeftError):
    """Another connection took the session over; the message is for the client."""


@dataclass(frozen=True, eq=False)
class ServerContext:
    """The state that all connections share.

    Attributes:
        config, sessions, parser, metrics: Those of the server.
        horizon: Maximum number of actions of a reply; 0 for all.
        metadata: The first message of a connection.
        work: Runs short computations.
        waits: Runs work that may wait for the engine.
        plans: Runs requests of memories.
        memories: None if the server keeps none.
        draining: Set once the server shuts down.
        leases: The leases by the name of the session.
        handlers: The handlers of all connections.
    """

    config: ServerConfig
    sessions: Sessions
    parser: ObservationParser
    horizon: int
    metadata: Reply
    metrics: Metrics
    work: Executor
    waits: Executor
    plans: Executor
    memories: Memories | None
    draining: threading.Event
    leases: dict[str, SessionLease] = field(default_factory=dict)
    handlers: set[ConnectionHandler] = field(default_factory=set)
    warn: Throttled = field(default_factory=lambda: Throttled(log.warning))
    fault: Throttled = field(default_factory=lambda: Throttled(log.error))


def forget(error: BaseException | None) -> None:
    """Drop the stack frames of an exception and of its causes.

    They refer to the message, in a reference cycle with the task that raised the exception.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


class SessionLease:
    """The session that one connection holds.

    A robot that lost power reconnects before its old connection is known to be dead, and continues
    its session. With keys this takes effect at once, because the key proves the identity. Without
    keys a name proves nothing, so that the old connection keeps its session if it answers a ping.

    `lost` is done once another connection has taken the session, with a message for the client.
    """

    def __init__(self, server: ServerContext, connection: MeteredConnection) -> None:
        self._sessions, self._leases = server.sessions, server.leases
        self._connection = connection
        self._session: Session | None = None
        self._renames = Bucket(RENAME_RATE, RENAME_BURST)
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def take(self, name: str) -> Session:
        """Return the session of that id, '' for the one that is held. Raises RefusedError.

        A connection that changes its session too often waits.
        """
        held, scope = self._session, self._connection.scope
        name = self.named(name)
        if held is None or (name and name != held.name):
            await asyncio.sleep(self._renames.take())
            while (holder := self._leases.get(name)) is not None:
                if not scope and await holder._is_alive():
                    raise RefusedError(f'session {name} is in use by another connection')
                if self._leases.get(name) is holder:
                    holder._lose(name)
            held = self._sessions.open(name, self._connection.id, scope)
            self.end()
            self._session, self._leases[held.name] = held, self
        return held

    def named(self, session: str) -> str:
        """Return the name of a session of the same key, by its id; '' for ''."""
        scope = self._connection.scope
        return f'{scope}:{session}' if session and scope else session  # no client can send a colon

    def end(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            del self._leases[session.name]
            self._sessions.close(session)

    async def _is_alive(self) -> bool:
        async def answered() -> None:
            await (await self._connection.ping())

        with suppress(asyncio.TimeoutError, ConnectionClosed):
            await asyncio.wait_for(answered(), ANSWER_SECONDS)
            return True
        return False

    def _lose(self, name: str) -> None:
        self.end()
        session = name.rpartition(':')[2]
        self.lost.set_result(f'another connection continues session {session}')
        abort = self._connection.transport.abort
        asyncio.get_running_loop().call_later(2 * GOODBYE_SECONDS, abort)


class ConnectionHandler:
    """Serves the requests of one connection."""

    def __init__(self, server: ServerContext, connection: MeteredConnection) -> None:
        self._server, self._connection = server, connection
        self._account = cast(Account, connection.account)  # of an admitted connection
        self._lease = SessionLease(server, connection)
        self._instruction = ''  # of the previous request
        self._refusals = False  # whether the client reads a reply `refused`
        self._for_package = False  # whether the client uses arrays of msgpack_numpy
        self._total = math.nan  # s of the previous request in all
        self._free = -math.inf  # earliest moment of the next request, s, steady clock
        self.busy = False  # whether a request is in flight

    async def run(self) -> None:
        """Serve requests until the client disconnects or violates the protocol."""
        self._server.handlers.add(self)
        try:
            await self._serve()
        except (ConnectionClosed, ClientLeftError) as error:
            forget(error)
        except Exception as error:  # of any type: it ends this connection only
            self._blame('a connection', error)
            await self._connection.close(CloseCode.INTERNAL_ERROR, 'the server failed')
        finally:
            self._server.handlers.discard(self)

    async def leave(self) -> None:
        """Close the connection because the server shuts down."""
        why = 'the server shuts down'
        self._connection.end = self._connection.end or why
        await self._connection.close(CloseCode.GOING_AWAY, why)

    async def _serve(self) -> None:
        gone = asyncio.ensure_future(self._connection.wait_closed())
        try:
            await self._send(codec.pack(self._server.metadata))
            while await self._turn(gone):
                if self._server.draining.is_set():
                    await self.leave()
        except SessionTakenError as error:
            await self._refuse(str(error))
        finally:
            gone.cancel()
            self._lease.end()

    async def _turn(self, gone: asyncio.Future) -> bool:
        """Serve one request; return whether another may follow."""
        message = await self._in_time(self._connection.recv(), gone, math.inf)
        self.busy = True
        try:
            return await self._answered(message, gone)
        finally:
            self.busy = False
            self._connection.done()

    async def _answered(self, message: bytes | str, gone: asyncio.Future) -> bool:
        began, call, outcome = time.monotonic(), Call(), 'failed'
        code = ErrorCode.UNKNOWN
        self._connection.requests += 1
        self._account.requests += 1
        await self._pace()
        seconds = self._server.config.request_timeout
        end = time.monotonic() + seconds
        try:
            if isinstance(message, str):
                raise RefusedError('messages must be binary frames of msgpack (got a text frame)')
            read = self._elsewhere(self._server.work, self._read, message)
            request = await self._in_time(read, gone, end)
            call = calls.named(request)  # gives the reply its id, even if the rest is refused
            call = await self._elsewhere(self._server.work, calls.read, request)
            if call.endpoint == calls.MEMORY:  # a plan takes many steps
                seconds = max(seconds, PLAN_SECONDS)
                end = began + seconds
            reply = await self._in_time(self._answer(call, request, began), gone, end)
            await self._reply(call, reply)
            outcome = 'missed' if 'missed' in reply else 'answered'
        except (RefusedError, CodedError) as error:
            outcome, text, code = 'refused', reason(error), code_of(error)
            forget(error)
        except TimeoutError as error:
            outcome = 'late'
            text = f'no answer within {seconds:g} s'
            forget(error)
        except (ConnectionClosed, ClientLeftError):
            outcome = 'left'
            raise
        except Exception as error:  # of any type: its name for the client, the rest in the log
            self._blame('a request', error)
            text = f'the server failed: {type(error).__name__}'
        finally:
            self._server.metrics.requests.labels(call.endpoint, outcome).inc()
        if outcome == 'refused' and (call.endpoint != calls.INFER or self._refusals):
            self._warn('refused', f'{self._connection.remote_address}: {shown(text, LINE)}')
            key = 'refused' if call.endpoint == calls.INFER else 'error'
            await self._reply(call, {key: shown(text, LINE), 'error_code': int(code)})
        elif outcome not in ('answered', 'missed'):
            await self._refuse(text)
            return False
        self._total = time.monotonic() - began
        return True

    async def _reply(self, call: Call, reply: Reply) -> None:
        named = {'request_id': call.request} if call.request else {}
        await self._send(codec.pack(reply | named, self._for_package))

    async def _refuse(self, text: str) -> None:
        """Send an error text and close, as openpi does, but without a traceback."""
        self._lease.end()
        self._connection.end = self._connection.end or text
        self._warn('refused', f'{self._connection.remote_address}: {shown(text, LINE)}')
        await self._send(shown(text, LINE), GOODBYE_SECONDS)
        await self._connection.close(CloseCode.INTERNAL_ERROR, 'see the previous frame')

    def _read(self, message: bytes) -> Reply:
        """Decode a message, on a worker because images take a moment."""
        self._refusals = False
        try:
            request, self._for_package = codec.decode(message)
        except codec.CodecError as error:
            raise RefusedError(str(error)) from error
        if not isinstance(request, dict):
            raise RefusedError('the message must be a map with an observation')
        self._refusals = request.get('refusals') is True
        return request

    async def _answer(self, call: Call, request: Reply, began: float) -> Reply:
        if call.endpoint == calls.MEMORY:
            return await self._remember(call)
        if call.endpoint == calls.ASK and call.about:
            return await self._ask(self._lease.named(call.about), call)
        session = await self._lease.take(call.session)
        if call.endpoint == calls.INFER:
            return await self._infer(session, call, request, began)
        if call.endpoint == calls.LOOK:
            return await self._look(session, call, request, began)
        if call.endpoint == calls.ASK:
            return await self._ask(session.name, call)
        verbs: dict[str, Callable[[], Reply | None]] = {
            calls.SNAPSHOT: lambda: {'name': session.snapshot(call.name)},
            calls.RESTORE: lambda: {'name': session.restore(call.name)},
            calls.EXPORT: lambda: self._export(session, call.name),
            calls.IMPORT: lambda: {'name': session.take_over(call.name, call.capsule)},
            calls.RESET: lambda: self._server.sessions.reset(session),
        }
        async with self._account.verbs:  # one job per key, so that keys take turns
            result = await self._elsewhere(self._server.waits, verbs[call.endpoint])
        state = {'status': call.endpoint, 'next': session.next, 'capsules': session.capsules}
        return state | (result or {})

    def _export(self, session: Session, name: str) -> Reply:
        """Return a capsule that a later message can bring back. Raises CapsuleError."""
        name, data = session.export(name)
        most = self._server.config.max_message_mib
        if len(data) + ENVELOPE > most * MIB:
            raise CapsuleError(
                f'capsule {shown(name)} must have less than {most} MiB, so that it can be '
                f'imported again (got {len(data) / MIB:.1f}); raise max_message_mib of the '
                'policy server',
                ErrorCode.NO_ROOM,
            )
        return {'name': name, 'capsule': data}

    async def _remember(self, call: Call) -> Reply:
        server = self._server
        if server.memories is None:
            raise RefusedError(
                'memory must be enabled; start the server with memory.enabled: true'
            )
        name = self._lease.named(call.memory)
        try:
            return await self._elsewhere(
                server.plans, server.memories.call, name, call.verb, call.given
            )
        except (RobotMemoryError, RefusedError):
            raise
        except (ValueError, OverBudgetError) as error:
            raise RefusedError(str(error)) from error

    async def _infer(self, session: Session, call: Call, request: Reply, began: float) -> Reply:
        server, frame = self._server, await self._observation(session, call, request, began)
        try:
            served = await asyncio.wrap_future(server.sessions.infer(session, frame))
            if time.monotonic() > frame.deadline:
                raise LateError('the chunk was ready after the deadline')
        except LateError as late:
            return {'missed': str(late), 'server_timing': self._timing(began)}
        chunk = cast(ActionChunk, served.chunk)  # without one, the future raises
        if not np.isfinite(chunk.values).all():
            raise RefusedError('the policy returned actions that are not finite')
        server.metrics.seconds.observe(time.monotonic() - began)
        return self._chunk(chunk, served.queued, call, began)

    async def _look(self, session: Session, call: Call, request: Reply, began: float) -> Reply:
        frame = await self._observation(session, call, request, began)
        try:
            await asyncio.wrap_future(self._server.sessions.look(session, frame))
        except (ValueError, OutOfRowsError) as error:
            raise RefusedError(str(error)) from error
        return {'status': calls.LOOK}

    async def _observation(
        self, session: Session, call: Call, request: Reply, began: float
    ) -> TimedObservation:
        server = self._server
        parsed = await self._elsewhere(server.work, server.parser.read, request)
        engine, prompt = server.sessions.engine, server.config.default_prompt
        name, number = session.name, session.next
        frame = calls.observation(engine, parsed, call, name, number, began, prompt)
        if frame.horizon is not None and server.horizon:
            frame = replace(frame, horizon=AtMost(frame.horizon, server.horizon))
        await self._warn_if_cut(frame.instruction)
        return frame

    async def _warn_if_cut(self, instruction: str) -> None:
        """Log once that an instruction is truncated, which openpi's servers do as well."""
        if instruction == self._instruction:
            return
        self._instruction, policy = instruction, self._server.sessions.engine.policy
        if await self._elsewhere(self._server.work, policy.truncates, instruction):
            text = (
                f'{self._connection.remote_address}: the prompt of {len(instruction)} characters '
                f'is cut to fit the {policy.config.max_text} text tokens of {policy.config.name}'
            )
            self._warn('cut', text)

    def _warn(self, kind: str, line: str) -> None:
        self._server.warn(kind, line, burst=BURST)
        asyncio.get_running_loop().call_later(WINDOW, self._server.warn.flush)

    def _blame(self, what: str, error: Exception) -> None:
        """Log a failure of the server, throttled for each type of error."""
        self._server.fault(type(error).__name__, f'{what} failed\n{trace(error)}')
        forget(error)
        asyncio.get_running_loop().call_later(WINDOW, self._server.fault.flush)

    def _chunk(self, chunk: ActionChunk, queued: float, call: Call, began: float) -> Reply:
        judged: Reply = {}
        if call.horizon is not None and chunk.confidence is not None:
            judged = {
                'round': chunk.sequence,
                'execution_horizon': chunk.execution_horizon,
                'confidence': chunk.confidence[: self._server.horizon or None],
            }
        return judged | {
            'actions': chunk.values[: self._server.horizon or None],
            'policy_timing': {
                'infer_ms': chunk.prefill_ms + chunk.denoise_ms,
                'prefill_ms': chunk.prefill_ms,
                'denoise_ms': chunk.denoise_ms,
                'queued_ms': queued * 1e3,
                'steps': chunk.steps,
            },
            'server_timing': self._timing(began),
        }

    def _timing(self, began: float) -> dict[str, float]:
        """Return times in ms; from the second request on also that of the previous one."""
        timing = {'infer_ms': (time.monotonic() - began) * 1e3}
        return timing if math.isnan(self._total) else timing | {'prev_total_ms': self._total * 1e3}

    async def _ask(self, session: str, call: Call) -> Reply:
        parser = self._server.parser
        if not parser.questions and call.question not in parser.prompts:
            raise RefusedError(
                'question must be absent: by its contract this policy answers no questions; if it '
                'was trained to, add language: {questions: true} to the contract'
            )
        try:
            text = await asyncio.wrap_future(
                self._server.sessions.ask(session, call.question, call.max_tokens, call.evict)
            )
        except ValueError as error:
            raise RefusedError(str(error)) from error
        return asdict(text)

    async def _pace(self) -> None:
        """Wait as long as the request rate of the client requires."""
        now = time.monotonic()
        self._free = max(now, self._free + 1 / self._server.config.max_request_rate)
        await asyncio.sleep(self._free - now)

    async def _in_time(self, work: Awaitable[T], gone: asyncio.Future, end: float) -> T:
        """Return the result before `end`, s, steady clock.

        Raises TimeoutError, ClientLeftError and SessionTakenError.
        """
        task, lost = asyncio.ensure_future(work), self._lease.lost
        limit = None if end == math.inf else max(0.0, end - time.monotonic())
        try:
            await asyncio.wait({task, gone, lost}, timeout=limit, return_when='FIRST_COMPLETED')
            if lost.done():
                raise SessionTakenError(lost.result())
            if task.done():
                return task.result()
            raise ClientLeftError if gone.done() else TimeoutError
        finally:
            task.cancel()

    async def _elsewhere(self, executor: Executor, work: Callable[..., T], *of: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(executor, work, *of)

    async def _send(self, message: bytes | str, limit: float = math.inf) -> None:
        """Send a message within `limit` s and `client_timeout`. Raises ClientLeftError."""
        limit = min(limit, self._server.config.client_timeout)
        try:
            await asyncio.wait_for(self._connection.send(message), limit)
        except asyncio.TimeoutError as error:  # not a TimeoutError before Python 3.11
            raise ClientLeftError('the client accepts no reply') from error
