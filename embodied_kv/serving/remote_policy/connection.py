"""A connection to a policy server, ours or any that speaks openpi's protocol, kept by a thread.

Knows sockets, one request at a time, and what becomes of both when the server does not answer.
Does not know observations or chunks. A reply is of the request before it on the same connection,
and of no other: where that is in doubt (one that came too late, one that nobody asked for, one
that names another request) the connection is given up, and a new one made. A plain server names
none: of it only order tells, and what it says unasked counts as unasked until the next request is
out. Nobody who asks waits here: what cannot be had now is refused at once.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from embodied_kv.serving.remote_policy.address import Address
from embodied_kv.serving.websocket import codec
from embodied_kv.serving.websocket.extensions import Extensions
from embodied_kv.text import reason, shown

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0  # s before a connection is tried again, ever longer
PING_SECONDS = 20.0  # that a server has at least to answer a ping: some compute meanwhile
TAKE_OVER_SECONDS = 5.0  # that a server has at least to hand a session to a new connection
CLOSE_SECONDS = 1.0  # that a server has to say goodbye
MESSAGE_BYTES = 2**26  # of what a server says: a capsule is the longest
WORDS = 300  # characters of its words that are shown
UNASKED = 'it says what nobody asked for'

Request = Mapping[str, object]
Reply = dict[str, object]


class Unanswered(ConnectionError):
    """A request has no reply, and none will come; the message says why."""


@dataclass(frozen=True, eq=False)
class _Job:
    request: Request
    seconds: float
    promise: Future[Reply] = field(default_factory=Future)


class RemotePolicy(threading.Thread):
    """From `start` to `stop` it is connected, or tries to be.

    fits: told what the server can beyond openpi's protocol, None for nothing, at each connection;
    it raises ValueError where such a server cannot move this robot. say: told of each connection
    and of each loss, once, in a sentence; on the thread. session: the session_id of all its
    requests to a server that knows sessions, so that each new connection goes on with the session
    of the one before; '' for a session of each connection's own.
    """

    def __init__(
        self,
        address: Address,
        fits: Callable[[Extensions | None], None],
        say: Callable[[str], object],
        session: str = '',
    ) -> None:
        super().__init__(name='remote policy', daemon=True)
        self._address, self._fits, self._say, self._session = address, fits, say, session
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._living: asyncio.Task | None = None
        self._ended = False
        self._jobs: asyncio.Queue[_Job] | None = None  # of this connection; None without one
        self._pause, self._said = FIRST_PAUSE, ''
        self.extensions: Extensions | None = None  # of the server that is, or was, connected
        self.problem = f'{address.uri} is not connected yet'  # why not; '' while it is

    # ------------------------------------------------------------------ from any thread

    def ask(self, request: Request, seconds: float | None = None) -> Future[Reply]:
        """Its reply, some time; of several requests one after another. From any thread.

        seconds: that the server has for it; None: the address's. The promise raises Unanswered.
        """
        job = _Job(request, self._address.reply_seconds if seconds is None else seconds)
        with self._lock:
            if self._jobs is None:
                job.promise.set_exception(Unanswered(self.problem or 'it has ended'))
            else:
                self._loop.call_soon_threadsafe(self._put, self._jobs, job)
        return job.promise

    @property
    def is_connected(self) -> bool:
        """Whether something can be asked now."""
        return self._jobs is not None

    def stop(self) -> None:
        """Says goodbye; what was asked is not answered any more."""
        with self._lock:
            self._ended = True
            if self._living is not None:
                self._loop.call_soon_threadsafe(self._living.cancel)
        if self.is_alive():
            self.join(2 * CLOSE_SECONDS)
        if self.is_alive():
            self.problem = f'{self._address.uri} is left, and its connection has not ended yet'
            self._say(self.problem)

    # ------------------------------------------------------------------ the thread

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        with self._lock:
            self._loop, self._living = asyncio.get_running_loop(), asyncio.current_task()
            if self._ended:
                return
        try:
            while not self._ended:  # wait_for may swallow a cancellation
                self.problem = await self._once()
                if self._ended:
                    break
                if self._said != self.problem:
                    self._said = self.problem
                    self._say(f'{self.problem}: trying again')
                await asyncio.sleep(self._pause)
                self._pause = min(2 * self._pause, LONGEST_PAUSE)
        except asyncio.CancelledError:
            pass
        finally:
            self.problem = 'it has ended'
            with self._lock:
                self._living = None

    def _put(self, jobs: asyncio.Queue[_Job], job: _Job) -> None:
        """On the loop, after which the connection may have ended."""
        if jobs is self._jobs:
            jobs.put_nowait(job)
        else:
            _refuse(job, self.problem or 'the connection ended')

    async def _once(self) -> str:
        """One connection, from its beginning to its end: why it ended."""
        uri, key = self._address.uri, self._address.key
        opening = connect(
            uri,
            compression=None,
            max_size=MESSAGE_BYTES,
            additional_headers={'Authorization': f'Api-Key {key}'} if key else None,
            open_timeout=self._address.reply_seconds,
            close_timeout=CLOSE_SECONDS,
            ping_timeout=max(PING_SECONDS, self._address.reply_seconds),
            proxy=None,
        )
        try:
            socket = await opening
            try:
                return await self._connected(socket)
            finally:
                with suppress(Exception):  # of what asyncio makes of a transport that has gone
                    await socket.close()
        except Exception as error:  # whatever it is: the next connection is another try
            return f'{uri}: {shown(reason(error), WORDS)}'

    async def _connected(self, socket: ClientConnection) -> str:
        uri, jobs = self._address.uri, asyncio.Queue()
        try:
            metadata = await asyncio.wait_for(socket.recv(), self._address.reply_seconds)
            extensions = Extensions.read(_read(metadata))
            self._fits(extensions)
        except asyncio.TimeoutError:
            return f'{uri}: no metadata within {self._address.reply_seconds:g} s'
        except ValueError as error:
            self._pause = LONGEST_PAUSE  # it will hardly be another one soon
            return f'{uri} cannot move this robot: {reason(error)}'
        self.extensions, self.problem, self._said = extensions, '', ''
        with self._lock:
            self._jobs = jobs
        why = 'it has ended'
        try:
            self._say(f'{uri} is connected')
            await self._serve(socket, jobs)
        except (Unanswered, WebSocketException) as error:
            why = f'{uri}: {shown(reason(error), WORDS)}'
        finally:
            self.problem = why
            with self._lock:
                self._jobs = None
            while not jobs.empty():
                _refuse(jobs.get_nowait(), why)
        return why

    async def _serve(self, socket: ClientConnection, jobs: asyncio.Queue[_Job]) -> None:
        """One request after another, until it has ended, or something is wrong: raises what."""
        connection, number = uuid.uuid4().hex[:12], 0
        heard = asyncio.ensure_future(socket.recv())
        asked: asyncio.Task[_Job] = asyncio.ensure_future(jobs.get())
        try:
            while not self._ended:
                await asyncio.wait({heard, asked}, return_when=asyncio.FIRST_COMPLETED)
                if heard.done():
                    heard.result()  # raises where the connection has ended
                    raise Unanswered(UNASKED)
                job, number = asked.result(), number + 1
                if not job.promise.set_running_or_notify_cancel():
                    asked = asyncio.ensure_future(jobs.get())
                    continue
                if number == 1 and self._session and self.extensions is not None:
                    job = replace(job, seconds=max(job.seconds, TAKE_OVER_SECONDS))
                try:
                    reply = await self._exchange(socket, heard, job, f'{connection}-{number}')
                except (Unanswered, WebSocketException) as error:
                    _refuse(job, shown(reason(error), WORDS))
                    raise
                self._pause = FIRST_PAUSE  # only of a server that answers
                heard = asyncio.ensure_future(socket.recv())
                asked = asyncio.ensure_future(jobs.get())
                job.promise.set_result(reply)
        finally:
            for task in (heard, asked):
                if not task.cancel() and not task.cancelled():
                    task.exception()  # it is known
            if asked.done() and not asked.cancelled():
                _refuse(asked.result(), 'the connection ended')

    async def _exchange(
        self, socket: ClientConnection, heard: asyncio.Future, job: _Job, name: str
    ) -> Reply:
        """Raises Unanswered, WebSocketException."""
        seconds, request = job.seconds, dict(job.request)
        if self.extensions is not None:
            request['request_id'] = name
            if self._session:
                request['session_id'] = self._session
            if self.extensions.refusals:
                request['refusals'] = True
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        sent = asyncio.ensure_future(socket.send(codec.pack(request)))
        try:
            await asyncio.wait({sent, heard}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if sent.done():
                sent.result()  # raises where the connection has ended
            elif heard.done():
                heard.result()
                raise Unanswered(UNASKED)
            else:
                socket.transport.abort()
                raise Unanswered(f'it takes no request within {seconds:g} s')
        finally:
            sent.cancel()
        await asyncio.wait({heard}, timeout=max(0.0, end - loop.time()))
        if not heard.done():
            socket.transport.abort()  # what it says of this request later is of no use
            raise Unanswered(f'no reply within {seconds:g} s')
        try:
            reply = _read(heard.result())
        except ValueError as error:
            raise Unanswered(reason(error)) from error
        if self.extensions is not None and reply.get('request_id') != name:
            raise Unanswered('its reply is of another request')
        return reply


def _refuse(job: _Job, why: str) -> None:
    if not job.promise.done():
        job.promise.set_exception(Unanswered(why))


def _read(message: bytes | str) -> Reply:
    """Raises ValueError, with the server's own words where it sent some."""
    if isinstance(message, str):
        line = message.strip().rpartition('\n')[2]  # openpi's ends with the error itself
        raise ValueError(f'the server says: {shown(line, WORDS)}')
    found = codec.unpack(message)
    if not isinstance(found, dict):
        raise ValueError('its message is no map')
    return found
