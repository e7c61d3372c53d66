"""A connection to a policy server of this package or of openpi, kept by a thread.

One request at a time is sent. A reply belongs to the previous request on the same connection. The
connection is closed and made again if a reply is late, was not requested, or names another
request. Plain openpi servers echo no request id, so that only the order matches their replies; a
message that arrives before the next request is sent counts as not requested. `RemotePolicy.ask`
never blocks: a request that cannot be sent now fails at once.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidURI, WebSocketException
from websockets.uri import parse_uri

from embodied_kv.errors import CodedError, ErrorCode, failure_code
from embodied_kv.serving.websocket import codec
from embodied_kv.serving.websocket.extensions import Extensions
from embodied_kv.text import reason, shown

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0  # s before a connection is tried again
PING_SECONDS = 20.0  # minimum timeout of a ping, because some servers compute in between
TAKE_OVER_SECONDS = 5.0  # minimum timeout of the first reply, which may take a session over
CLOSE_SECONDS = 1.0  # for the closing handshake
MESSAGE_BYTES = 2**26  # maximum of a message; a capsule is the longest
WORDS = 300  # characters of an error of the server that are shown
REMEDIES = {  # by extension; the others need another server
    'memory': 'start the policy server of this package with memory.enabled: true'
}
UNASKED = 'the server sent a message that was not requested'

Request = Mapping[str, object]
Reply = dict[str, object]


class UnansweredError(ConnectionError):
    """A request that will get no reply; the message states the reason."""


@dataclass(frozen=True)
class Address:
    """The URI of a policy server, ws://HOST:PORT or wss://HOST:PORT, and its API key ('': none).

    `reply_timeout`: maximum time (s) for the handshake, and for a reply. Raises ValueError for an
    invalid URI.
    """

    uri: str
    key: str = field(default='', repr=False)
    reply_timeout: float = 5.0

    def __post_init__(self) -> None:
        try:
            parse_uri(self.uri)
        except (InvalidURI, ValueError) as error:  # ValueError: a port out of range
            raise ValueError(
                f'address must be ws://HOST:PORT or wss://HOST:PORT (got {shown(self.uri)!r})'
            ) from error

    @staticmethod
    def key_of(file: str) -> str:
        """Return the key in a file; '' if `file` is empty. Raises ValueError, OSError."""
        if not file:
            return ''
        words = Path(file).expanduser().read_text(encoding='utf-8').split()
        if len(words) != 1:
            raise ValueError(
                f'{file} must contain the key and nothing else (got {len(words)} words); remove '
                'the name that the file of the server has before it'
            )
        return words[0]


@dataclass(frozen=True, eq=False)
class _Job:
    request: Request
    seconds: float
    promise: Future[Reply] = field(default_factory=Future)


class RemotePolicy(threading.Thread):
    """A thread that keeps a connection from `start` to `stop`.

    Args:
        address: The address of the server.
        fits: Called at each connection with the extensions of the server, None for none. It raises
            ValueError for a server that cannot move this robot.
        say: Receives one line for each connection and each loss, on this thread. `stop` calls it
            if the connection does not close.
        session: The session_id of all requests, so that each new connection continues the session;
            '' for one session per connection.
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
        self._loop: asyncio.AbstractEventLoop  # while there are `_living` or `_jobs`
        self._living: asyncio.Task | None = None
        self._ended = False
        self._jobs: asyncio.Queue[_Job] | None = None  # None without a connection
        self._pause, self._said = FIRST_PAUSE, ''
        self.extensions: Extensions | None = None  # of the newest server
        self.problem = f'{address.uri} is not connected yet'  # '' while connected

    def ask(self, request: Request, seconds: float | None = None) -> Future[Reply]:
        """Return a future of the reply; requests are sent in turn.

        `seconds`: maximum time; None for that of the address. The future raises UnansweredError.
        """
        job = _Job(request, self._address.reply_timeout if seconds is None else seconds)
        with self._lock:
            if self._jobs is None:
                job.promise.set_exception(
                    UnansweredError(self.problem or 'the connection has ended')
                )
            else:
                self._loop.call_soon_threadsafe(self._put, self._jobs, job)
        return job.promise

    @property
    def is_connected(self) -> bool:
        """Whether a request can be sent now."""
        return self._jobs is not None

    def stop(self) -> None:
        """Close the connection; open requests fail."""
        with self._lock:
            self._ended = True
            if self._living is not None:
                self._loop.call_soon_threadsafe(self._living.cancel)
        if self.is_alive():
            self.join(2 * CLOSE_SECONDS)
        if self.is_alive():
            self.problem = f'{self._address.uri}: the connection did not close in time'
            self._say(self.problem)

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
            self.problem = 'the connection has ended'
            with self._lock:
                self._living = None

    def _put(self, jobs: asyncio.Queue[_Job], job: _Job) -> None:
        if jobs is self._jobs:
            jobs.put_nowait(job)
        else:
            _refuse(job, self.problem or 'the connection ended')

    async def _once(self) -> str:
        """Keep one connection until it ends; return the reason."""
        uri, key = self._address.uri, self._address.key
        opening = connect(
            uri,
            compression=None,
            max_size=MESSAGE_BYTES,
            additional_headers={'Authorization': f'Api-Key {key}'} if key else None,
            open_timeout=self._address.reply_timeout,
            close_timeout=CLOSE_SECONDS,
            ping_timeout=max(PING_SECONDS, self._address.reply_timeout),
            proxy=None,
        )
        try:
            socket = await opening
            try:
                return await self._connected(socket)
            finally:
                with suppress(Exception):  # asyncio may fail on a transport that was lost
                    await socket.close()
        except Exception as error:  # of any type: the connection is tried again
            return f'{uri}: {shown(reason(error), WORDS)}'

    async def _connected(self, socket: ClientConnection) -> str:
        uri = self._address.uri
        jobs: asyncio.Queue[_Job] = asyncio.Queue()
        try:
            metadata = await asyncio.wait_for(socket.recv(), self._address.reply_timeout)
            extensions = Extensions.read(_read(metadata))
            self._fits(extensions)
        except asyncio.TimeoutError:
            return f'{uri}: no metadata within {self._address.reply_timeout:g} s'
        except ValueError as error:
            self._pause = LONGEST_PAUSE  # the server will hardly change soon
            return f'{uri} cannot move this robot: {reason(error)}'
        self.extensions, self.problem, self._said = extensions, '', ''
        with self._lock:
            self._jobs = jobs
        why = 'the connection has ended'
        try:
            self._say(f'{uri} is connected')
            await self._serve(socket, jobs)
        except (UnansweredError, WebSocketException) as error:
            why = f'{uri}: {shown(reason(error), WORDS)}'
        finally:
            self.problem = why
            with self._lock:
                self._jobs = None
            while not jobs.empty():
                _refuse(jobs.get_nowait(), why)
        return why

    async def _serve(self, socket: ClientConnection, jobs: asyncio.Queue[_Job]) -> None:
        """Serve requests in turn until the end; raises the error of the connection."""
        connection, number = uuid.uuid4().hex[:12], 0
        received = asyncio.ensure_future(socket.recv())
        asked: asyncio.Task[_Job] = asyncio.ensure_future(jobs.get())
        try:
            while not self._ended:
                await asyncio.wait({received, asked}, return_when=asyncio.FIRST_COMPLETED)
                if received.done():
                    received.result()  # raises if the connection has ended
                    raise UnansweredError(UNASKED)
                job, number = asked.result(), number + 1
                if not job.promise.set_running_or_notify_cancel():
                    asked = asyncio.ensure_future(jobs.get())
                    continue
                if number == 1 and self._session and self.extensions is not None:
                    job = replace(job, seconds=max(job.seconds, TAKE_OVER_SECONDS))
                try:
                    reply = await self._exchange(socket, received, job, f'{connection}-{number}')
                except (UnansweredError, WebSocketException) as error:
                    _refuse(job, shown(reason(error), WORDS))
                    raise
                self._pause = FIRST_PAUSE  # only for a server that answers
                received = asyncio.ensure_future(socket.recv())
                asked = asyncio.ensure_future(jobs.get())
                job.promise.set_result(reply)
        finally:
            for task in (received, asked):
                if not task.cancel() and not task.cancelled():
                    task.exception()  # already handled
            if asked.done() and not asked.cancelled():
                _refuse(asked.result(), 'the connection ended')

    async def _exchange(
        self, socket: ClientConnection, received: asyncio.Future, job: _Job, name: str
    ) -> Reply:
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
            await asyncio.wait(
                {sent, received}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if sent.done():
                sent.result()  # raises if the connection has ended
            elif received.done():
                received.result()
                raise UnansweredError(UNASKED)
            else:
                socket.transport.abort()
                raise UnansweredError(f'the request was not accepted within {seconds:g} s')
        finally:
            sent.cancel()
        await asyncio.wait({received}, timeout=max(0.0, end - loop.time()))
        if not received.done():
            socket.transport.abort()  # a later reply is of no use
            raise UnansweredError(f'no reply within {seconds:g} s')
        try:
            reply = _read(received.result())
        except ValueError as error:
            raise UnansweredError(reason(error)) from error
        if self.extensions is not None and reply.get('request_id') != name:
            raise UnansweredError('the reply is of another request')
        return reply


def _refuse(job: _Job, why: str) -> None:
    if not job.promise.done():
        job.promise.set_exception(UnansweredError(why))


def _read(message: bytes | str) -> Reply:
    """Return a message. Raises ValueError, with the error that the server sent, if any."""
    if isinstance(message, str):
        line = message.strip().rpartition('\n')[2]  # the last line of openpi's traceback
        raise ValueError(f'the server reported: {shown(line, WORDS)}')
    found = codec.unpack(message)
    if not isinstance(found, dict):
        raise ValueError('the message of the server must be a map')
    return found


def ask(policy: RemotePolicy | None, wanted: str, request: Request, seconds: float) -> Reply:
    """Return the reply of a server that has an extension; waits for it.

    Args:
        policy: The connection; None while the node that owns it is not active.
        wanted: The required field of `Extensions`.
        request: The request.
        seconds: Maximum time for the reply.

    Raises:
        CodedError: The server is not connected, lacks the extension, refuses or does not answer.
    """
    if policy is None or not policy.is_connected:
        why = policy.problem if policy is not None else 'the node of the connection is not active'
        raise CodedError(
            f'the policy server must be connected (got: {why})', ErrorCode.UNAVAILABLE
        )
    if not getattr(policy.extensions, wanted, False):
        fix = REMEDIES.get(wanted, 'use the policy server of this package')
        raise CodedError(
            f'the policy server must offer {wanted} (got one that does not); {fix}',
            ErrorCode.UNAVAILABLE,
        )
    try:
        reply = policy.ask(request, seconds).result(2 * seconds)
    except (UnansweredError, FutureTimeoutError) as error:
        raise CodedError(
            f'the policy server did not answer: {error}', ErrorCode.UNAVAILABLE
        ) from error
    if 'error' in reply:
        code = reply.get('error_code')
        raise CodedError(
            f'the policy server refused the request: {shown(reply["error"], 300)}',
            failure_code(code if isinstance(code, int) else 0),
        )
    return reply
