"""One connection, from its first message to its last: openpi's protocol, one request at a time.

Knows frames, replies and time limits. Does not know how a chunk is made. Whatever a client does,
its own connection is all that suffers: it waits for its own turn, and what it holds is freed when
it goes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field, replace
from typing import TypeVar

import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.control.execution_horizon import AtMost
from embodied_kv.errors import ErrorCode, code_of
from embodied_kv.kv.budget import OverBudget
from embodied_kv.kv.rows import OutOfRows
from embodied_kv.memory.segment import MemoryFault
from embodied_kv.serving.fleet_server import ServedChunk
from embodied_kv.serving.in_time import TimedObservation
from embodied_kv.serving.memories import Memories
from embodied_kv.serving.websocket import calls, codec
from embodied_kv.serving.websocket.calls import Call
from embodied_kv.serving.websocket.config import ServerConfig
from embodied_kv.serving.websocket.dialect import Dialect, Refused
from embodied_kv.serving.websocket.hold import GOODBYE_SECONDS, Hold
from embodied_kv.serving.websocket.metrics import Metrics
from embodied_kv.serving.websocket.observation import observation
from embodied_kv.serving.websocket.session import Session
from embodied_kv.serving.websocket.sessions import Missed, Sessions
from embodied_kv.serving.websocket.visitor import Visitor
from embodied_kv.text import LINE, reason, shown, trace
from embodied_kv.throttle import WINDOW, Throttled

T = TypeVar('T')
BURST = 8  # warnings of a kind that are logged at once, of all clients; others are counted
FAILED = 1011  # why a connection is closed, of the websocket protocol
Reply = dict[str, object]

log = logging.getLogger(__name__)


class Left(ConnectionError):
    """The client has gone while something was made for it."""


class Replaced(Left):
    """Another connection has its session; the message is for the client."""


@dataclass(frozen=True, eq=False)
class Serving:
    """What all clients share.

    work: runs what takes a moment. waits: what may wait for long. plans: what memories are asked;
    memories: None where none are kept.
    holds: who holds which session. clients: all of them. draining: set once the server ends.
    """

    config: ServerConfig
    sessions: Sessions
    dialect: Dialect
    horizon: int
    metadata: Reply
    metrics: Metrics
    work: Executor
    waits: Executor
    plans: Executor
    memories: Memories | None
    draining: threading.Event
    holds: dict[str, Hold] = field(default_factory=dict)
    clients: set[Client] = field(default_factory=set)
    say: Throttled = field(default_factory=lambda: Throttled(log.warning))
    fault: Throttled = field(default_factory=lambda: Throttled(log.error))


def forget(error: BaseException | None) -> None:
    """Drop the frames of an exception and of those that led to it.

    They hold the message, in a cycle with the task that raised it.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _exported(session: Session, name: str) -> Reply:
    name, capsule = session.export(name)
    return {'name': name, 'capsule': capsule}


class Client:
    """One of them."""

    def __init__(self, serving: Serving, connection: Visitor) -> None:
        self._serving, self._connection = serving, connection
        self._hold = Hold(serving.sessions, serving.holds, connection)
        self._instruction = ''  # of the request before
        self._refusals = False  # whether it asked for a reply `refused`, and the connection lives
        self._for_package = False  # whether it sends, and so reads, arrays of msgpack_numpy
        self._total = math.nan  # s of the request before, all in all
        self._free = -math.inf  # from when on the next request may be served, s, steady clock
        self.busy = False  # whether a request is in flight

    async def run(self) -> None:
        """Until it goes, or does what no client may."""
        self._serving.clients.add(self)
        try:
            await self._serve()
        except (ConnectionClosed, Left) as error:
            forget(error)
        except Exception as error:  # it ends this connection, and the others do not notice
            self._blame('a connection', error)
            await self._connection.close(FAILED, 'the server failed')
        finally:
            self._serving.clients.discard(self)

    async def leave(self) -> None:
        """Close the connection, as the server ends."""
        self._connection.end = self._connection.end or 'the server ends'
        await self._connection.close(CloseCode.GOING_AWAY, 'the server ends')

    async def _serve(self) -> None:
        gone = asyncio.ensure_future(self._connection.wait_closed())
        try:
            await self._send(codec.pack(self._serving.metadata))
            while await self._turn(gone):
                if self._serving.draining.is_set():
                    await self.leave()
        except Replaced as replaced:
            await self._refuse(str(replaced))
        finally:
            gone.cancel()
            self._hold.end()

    async def _turn(self, gone: asyncio.Future) -> bool:
        """A request and its reply: whether another one may follow."""
        message = await self._in_time(self._connection.recv(), gone, math.inf)
        self.busy = True
        try:
            return await self._answered(message, gone)
        finally:
            self.busy = False
            self._connection.done()

    async def _answered(self, message: bytes | str, gone: asyncio.Future) -> bool:
        """Answer it: whether another one may follow."""
        began, call, outcome = time.monotonic(), Call(), 'failed'
        code = ErrorCode.UNKNOWN
        self._connection.requests += 1
        self._connection.account.requests += 1
        await self._pace()
        end = time.monotonic() + self._serving.config.request_seconds
        try:
            if isinstance(message, str):
                raise Refused('a text frame: send msgpack in binary ones')
            read = self._elsewhere(self._serving.work, self._read, message)
            request = await self._in_time(read, gone, end)
            call = calls.named(request)  # whose reply it is, also where the rest is refused
            call = await self._elsewhere(self._serving.work, calls.read, request)
            reply = await self._in_time(self._answer(call, request, began), gone, end)
            await self._reply(call, reply)
            outcome = 'missed' if 'missed' in reply else 'answered'
        except (Refused, CapsuleError, MemoryFault) as error:
            outcome, text, code = 'refused', reason(error), code_of(error)
            forget(error)
        except TimeoutError as error:
            outcome = 'late'
            text = f'no answer within {self._serving.config.request_seconds:g} s'
            forget(error)
        except (ConnectionClosed, Left):
            outcome = 'left'
            raise
        except Exception as error:  # whatever it is: a word to the client, the rest to the log
            self._blame('a request', error)
            text = f'the server failed: {type(error).__name__}'
        finally:
            self._serving.metrics.requests.labels(call.endpoint, outcome).inc()
        if outcome == 'refused' and (call.endpoint != calls.INFER or self._refusals):
            self._say('refused', f'{self._connection.remote_address}: {shown(text, LINE)}')
            key = 'refused' if call.endpoint == calls.INFER else 'error'
            told = {key: shown(text, LINE), 'error_code': int(code)}
            await self._reply(call, told)  # such a client reads it, and goes on
        elif outcome not in ('answered', 'missed'):
            await self._refuse(text)
            return False
        self._total = time.monotonic() - began
        return True

    async def _reply(self, call: Call, reply: Reply) -> None:
        named = {'request_id': call.request} if call.request else {}
        await self._send(codec.pack(reply | named, self._for_package))

    async def _refuse(self, text: str) -> None:
        """As openpi does, but for the traceback: words, then the end; nothing is held for it."""
        self._hold.end()
        self._connection.end = self._connection.end or text
        self._say('refused', f'{self._connection.remote_address}: {shown(text, LINE)}')
        await self._send(shown(text, LINE), GOODBYE_SECONDS)
        await self._connection.close(FAILED, 'the frame before says why')

    # ------------------------------------------------------------------ what it asks for

    def _read(self, message: bytes) -> Reply:
        """Off the event loop, as pictures take a moment. Raises Refused."""
        self._refusals = False
        try:
            request, self._for_package = codec.decode(message)
        except codec.CodecError as error:
            raise Refused(str(error)) from error
        if not isinstance(request, dict):
            raise Refused('the message is no map: send an observation')
        self._refusals = request.get('refusals') is True
        return request

    async def _answer(self, call: Call, request: Reply, began: float) -> Reply:
        if call.endpoint == calls.MEMORY:
            return await self._remember(call)
        if call.endpoint == calls.ASK and call.about:
            return await self._ask(self._hold.named(call.about), call)
        session = await self._hold.take(call.session)
        if call.endpoint == calls.INFER:
            return await self._infer(session, call, request, began)
        if call.endpoint == calls.LOOK:
            return await self._look(session, call, request, began)
        if call.endpoint == calls.ASK:
            return await self._ask(session.name, call)
        verbs: dict[str, Callable[[], Reply]] = {
            calls.SNAPSHOT: lambda: {'name': session.snapshot(call.name)},
            calls.RESTORE: lambda: {'name': session.restore(call.name)},
            calls.EXPORT: lambda: _exported(session, call.name),
            calls.IMPORT: lambda: {'name': session.take_over(call.name, call.capsule)},
            calls.RESET: lambda: self._reset(session),
        }
        async with self._connection.account.verbs:  # so that others' come in between
            said = await self._elsewhere(self._serving.waits, verbs[call.endpoint])
        state = {'status': call.endpoint, 'next': session.next, 'capsules': session.capsules}
        return state | said

    async def _remember(self, call: Call) -> Reply:
        serving = self._serving
        if serving.memories is None:
            raise Refused('this server keeps no memory: start it with memory.enabled: true')
        name = self._hold.named(call.memory)
        try:
            return await self._elsewhere(
                serving.plans, serving.memories.call, name, call.verb, call.given
            )
        except (MemoryFault, Refused):
            raise
        except (ValueError, OverBudget) as error:
            raise Refused(str(error)) from error

    def _reset(self, session: Session) -> Reply:
        self._serving.sessions.reset(session)
        return {}

    async def _infer(self, session: Session, call: Call, request: Reply, began: float) -> Reply:
        serving, frame = self._serving, await self._observation(session, call, request, began)
        try:
            served = await asyncio.wrap_future(serving.sessions.infer(session, frame))
            if time.monotonic() > frame.deadline:
                raise Missed('the chunk was there after the deadline')
        except Missed as missed:
            return {'missed': str(missed), 'server_timing': self._timing(began)}
        if not np.isfinite(served.chunk.values).all():
            raise Refused('the policy says no finite actions to this')
        serving.metrics.seconds.observe(time.monotonic() - began)
        return self._chunk(served, call, began)

    async def _look(self, session: Session, call: Call, request: Reply, began: float) -> Reply:
        frame = await self._observation(session, call, request, began)
        try:
            await asyncio.wrap_future(self._serving.sessions.look(session, frame))
        except (ValueError, OutOfRows) as error:
            raise Refused(str(error)) from error
        return {'status': calls.LOOK}

    async def _observation(
        self, session: Session, call: Call, request: Reply, began: float
    ) -> TimedObservation:
        """Raises Refused."""
        serving = self._serving
        seen = await self._elsewhere(serving.work, serving.dialect.read, request)
        engine, prompt = serving.sessions.engine, serving.config.prompt
        frame = observation(engine, seen, call, session.name, session.next, began, prompt)
        if frame.horizon is not None and serving.horizon:
            frame = replace(frame, horizon=AtMost(frame.horizon, serving.horizon))
        await self._say_if_cut(frame.instruction)
        return frame

    async def _say_if_cut(self, instruction: str) -> None:
        """To the log, once for each instruction: openpi's servers cut it as well."""
        if instruction == self._instruction:
            return
        self._instruction, policy = instruction, self._serving.sessions.engine.policy
        if await self._elsewhere(self._serving.work, policy.cuts, instruction):
            text = (
                f'{self._connection.remote_address}: its prompt of {len(instruction)} characters '
                f'is cut to fit the {policy.config.max_text} text tokens of {policy.config.name}'
            )
            self._say('cut', text)

    def _say(self, kind: str, line: str) -> None:
        self._serving.say(kind, line, burst=BURST)
        asyncio.get_running_loop().call_later(WINDOW, self._serving.say.flush)

    def _blame(self, what: str, error: Exception) -> None:
        """The server failed at it: to the log, once in a while for each kind of error."""
        self._serving.fault(type(error).__name__, f'{what} failed\n{trace(error)}')
        forget(error)
        asyncio.get_running_loop().call_later(WINDOW, self._serving.fault.flush)

    def _chunk(self, served: ServedChunk, call: Call, began: float) -> Reply:
        chunk, judged = served.chunk, {}
        if call.horizon is not None:
            judged = {
                'round': chunk.sequence,
                'execution_horizon': chunk.execution_horizon,
                'confidence': chunk.confidence[: self._serving.horizon or None],
            }
        return judged | {
            'actions': chunk.values[: self._serving.horizon or None],
            'policy_timing': {
                'infer_ms': chunk.prefill_ms + chunk.denoise_ms,
                'prefill_ms': chunk.prefill_ms,
                'denoise_ms': chunk.denoise_ms,
                'queued_ms': served.queued * 1e3,
                'steps': chunk.steps,
            },
            'server_timing': self._timing(began),
        }

    def _timing(self, began: float) -> dict[str, float]:
        """ms; the whole of the request before, from the second one on."""
        timing = {'infer_ms': (time.monotonic() - began) * 1e3}
        return timing if math.isnan(self._total) else timing | {'prev_total_ms': self._total * 1e3}

    async def _ask(self, session: str, call: Call) -> Reply:
        dialect = self._serving.dialect
        if not dialect.questions and call.question not in dialect.prompts:
            raise Refused(
                'by its contract this policy answers no questions: if it was trained to, write '
                'language: {questions: true} there'
            )
        try:
            text = await asyncio.wrap_future(
                self._serving.sessions.ask(session, call.question, call.max_tokens, call.evict)
            )
        except ValueError as error:
            raise Refused(str(error)) from error
        return asdict(text)

    # ------------------------------------------------------------------ time

    async def _pace(self) -> None:
        """No client is served more often than it may be; it waits, and nobody else."""
        now = time.monotonic()
        self._free = max(now, self._free + 1 / self._serving.config.request_rate)
        await asyncio.sleep(self._free - now)

    async def _in_time(self, work: Awaitable[T], gone: asyncio.Future, end: float) -> T:
        """The result, before `end`, s, steady clock. Raises TimeoutError, Left and Replaced."""
        task, lost = asyncio.ensure_future(work), self._hold.lost
        limit = None if end == math.inf else max(0.0, end - time.monotonic())
        try:
            await asyncio.wait({task, gone, lost}, timeout=limit, return_when='FIRST_COMPLETED')
            if lost.done():
                raise Replaced(lost.result())
            if task.done():
                return task.result()
            raise Left if gone.done() else TimeoutError
        finally:
            task.cancel()

    async def _elsewhere(self, executor: Executor, work: Callable[..., T], *of: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(executor, work, *of)

    async def _send(self, message: bytes | str, limit: float = math.inf) -> None:
        """Raises Left where it takes nothing within `limit` s, or as long as it may be silent."""
        limit = min(limit, self._serving.config.silence_seconds)
        try:
            await asyncio.wait_for(self._connection.send(message), limit)
        except asyncio.TimeoutError as error:  # before Python 3.11 no TimeoutError
            raise Left('it takes no reply') from error
