"""Admission of connections by key, address and number, and the pages that need no websocket.

The memory of large messages is returned to the operating system, because the C library keeps it.
"""

from __future__ import annotations

import asyncio
import ctypes
import hmac
import ipaddress
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from websockets.frames import CloseCode
from websockets.http11 import Request, Response

from embodied_kv.serving.websocket.accounts import Account, Accounts, Bucket
from embodied_kv.serving.websocket.config import MIB, ServerConfig
from embodied_kv.serving.websocket.metered_connection import MeteredConnection
from embodied_kv.serving.websocket.metrics import Metrics
from embodied_kv.text import LINE, shown
from embodied_kv.throttle import WINDOW, Throttled

SCHEME = 'Api-Key '
OPENING = 16  # connections that may be opening in addition to the admitted ones
WRONG_RATE, WRONG_BURST = 2.0, 8  # wrong keys of an address, per second and at once
SLOWEST = 5.0  # s; maximum delay of a refusal
ADDRESSES = 1024  # addresses whose wrong keys are remembered
ACCESS_BURST = 64  # lines of the access log within a window
LARGE = 2**20  # bytes of a message for which a trim of the heap is worth its time
TRIM_PERIOD = 2.0  # s between two trims

log = logging.getLogger(__name__)
access = logging.getLogger('embodied_kv.serving.access')


def _malloc_trim() -> Callable[[int], int] | None:
    """Return the function of the C library of this process; None if it has none."""
    with suppress(OSError, AttributeError):
        return ctypes.CDLL(None).malloc_trim
    return None


class Admission:
    """Admits connections, and serves /healthz, /readyz and /metrics.

    Args:
        config: The server's settings. Raises ValueError, OSError if its keys cannot be read.
        metrics: The server's metrics.
        work: Runs calls that take a moment.
        fault: Returns why no client can be served, '' if there is no fault.
        ready: Returns why no request is accepted, '' if requests are.
        divide: Called with the names of all keys, at the start and after each reload.
    """

    def __init__(
        self,
        config: ServerConfig,
        metrics: Metrics,
        work: Executor,
        fault: Callable[[], str],
        ready: Callable[[], str],
        divide: Callable[[list[str]], None],
    ) -> None:
        self._config, self._metrics, self._fault, self._ready = config, metrics, fault, ready
        self._divide = divide
        self.accounts = Accounts(config.keys(), config.message_buffer_mib * MIB)
        divide(self.accounts.names)
        self._most, self._most_of_key = config.max_connections, config.max_connections_per_key
        self._most_unopened = 2 * self._most + OPENING
        self._inside: set[MeteredConnection] = set()
        self._sockets: set[asyncio.Transport] = set()
        self._unopened: dict[str, dict[MeteredConnection, None]] = {}  # by address
        self._handshakes: dict[asyncio.Task, None] = {}  # of TLS, the oldest first
        self._wrong: OrderedDict[str, Bucket] = OrderedDict()  # by address
        self._say, self._access = Throttled(log.warning), Throttled(access.info)
        self._work, self._malloc_trim, self._trims = work, _malloc_trim(), False

    def connection(self, *arguments: Any, **options: Any) -> MeteredConnection:
        if self._config.certificate and (handshake := asyncio.current_task()):
            self._begin_handshake(handshake)
        return MeteredConnection(self, *arguments, **options)

    async def admit(self, connection: MeteredConnection, request: Request) -> Response | None:
        """Return None to admit the connection, or the HTTP response that is sent instead."""
        path = request.path.partition('?')[0]
        if path in ('/healthz', '/readyz'):
            return self._state(connection, self.state(path))
        key = self._key(request.headers.get_all('Authorization'))
        if key is None:
            await self._slow_down(connection)
            return self._reject(
                connection,
                'key',
                HTTPStatus.UNAUTHORIZED,
                'send a valid key: Authorization: Api-Key …\n',
            )
        account = self.accounts.of(self.accounts.keys.get(key, ''))
        if account.name and (wait := account.openings.take()):
            await self._wait(connection, wait)
            text = 'too many new connections with this key: retry later\n'
            return self._reject(connection, 'connections', HTTPStatus.SERVICE_UNAVAILABLE, text)
        if path == '/metrics':
            return connection.respond(HTTPStatus.OK, self._metrics.page().decode())
        origins = request.headers.get_all('Origin')  # a web page must not drive a robot
        if other := [o for o in origins if o.lower() not in self._config.origin_set]:
            return self._reject(
                connection,
                'browser',
                HTTPStatus.FORBIDDEN,
                'the Origin header must be one of the parameter allowed_origins (got '
                f'{shown(other[0])}); in a script with the package websocket-client, pass '
                'suppress_origin=True; for a web page, add its origin to allowed_origins\n',
            )
        if full := self._full(account):
            return self._reject(connection, 'connections', HTTPStatus.SERVICE_UNAVAILABLE, full)
        if connection.transport.is_closing():  # already counted by `_evict`
            return self._reject(connection, 'sockets', HTTPStatus.SERVICE_UNAVAILABLE, '')
        connection.enter(account, key)
        self._forget_unopened(connection)
        self._inside.add(connection)
        self._metrics.connections.set(len(self._inside))
        asyncio.ensure_future(connection.wait_closed()).add_done_callback(
            lambda _: self._left(connection)
        )
        return None

    def state(self, path: str) -> str:
        """Return why a probe of /healthz or /readyz fails; '' for success."""
        return self._fault() or (self._ready() if path == '/readyz' else '')

    def reload(self) -> None:
        """Read the keys again, and close connections of removed keys with 1008.

        If the file cannot be used, the keys do not change and an error is logged.
        """
        try:
            keys = self._config.keys()
        except (ValueError, OSError) as error:
            log.error('the keys were not reloaded: %s', shown(error, LINE))
            return
        if not keys:
            log.warning('no keys to reload: api_keys_file is empty')
            return
        self.accounts.divide(keys)
        revoked = [c for c in self._inside if c.key not in keys]
        for connection in revoked:
            connection.revoke()
        self._divide(self.accounts.names)
        log.info(
            'keys reloaded: %s; connections closed: %d',
            ', '.join(self.accounts.names),
            len(revoked),
        )

    def opened(self, connection: MeteredConnection) -> None:
        """Count an open socket; if too many are unadmitted, close the oldest of an address."""
        self._sockets.add(connection.transport)
        site = _site(connection.address)
        self._unopened.setdefault(site, {})[connection] = None
        if len(self._unopened[site]) > self._most + OPENING:
            self._evict(site)
        elif sum(map(len, self._unopened.values())) > self._most_unopened:
            self._evict(max(self._unopened, key=lambda s: len(self._unopened[s])))

    def closed(self, connection: MeteredConnection) -> None:
        self._sockets.discard(connection.transport)
        self._forget_unopened(connection)

    def freed(self, size: int) -> None:
        """Trim the heap soon, at most once a period, if `size` bytes were a large message."""
        if size >= LARGE and not self._trims and self._malloc_trim is not None:
            self._trims = True
            asyncio.get_running_loop().call_later(TRIM_PERIOD, self._trim, self._malloc_trim)

    @property
    def sockets(self) -> int:
        return len(self._sockets)

    def abort(self) -> None:
        for socket in list(self._sockets):
            socket.abort()
        for handshake in list(self._handshakes):
            handshake.cancel()

    def _begin_handshake(self, handshake: asyncio.Task) -> None:
        """Count a TLS handshake until its task ends; if there are too many, close the oldest."""
        self._handshakes[handshake] = None
        handshake.add_done_callback(lambda task: self._handshakes.pop(task, None))
        if len(self._handshakes) > self._most_unopened:
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]
            self._metrics.rejected.labels('sockets').inc()
            oldest.cancel()

    def _trim(self, malloc_trim: Callable[[int], int]) -> None:
        self._trims = False
        with suppress(RuntimeError):  # the server has stopped
            self._work.submit(malloc_trim, 0)

    def _forget_unopened(self, connection: MeteredConnection) -> None:
        site = _site(connection.address)
        waiting = self._unopened.get(site, {})
        waiting.pop(connection, None)
        if not waiting:
            self._unopened.pop(site, None)

    def _evict(self, site: str) -> None:
        oldest = next(iter(self._unopened[site]))
        self._forget_unopened(oldest)
        self._metrics.rejected.labels('sockets').inc()
        oldest.transport.abort()

    def _left(self, connection: MeteredConnection) -> None:
        self._inside.discard(connection)
        protocol = connection.protocol
        sent, received = protocol.close_sent, protocol.close_rcvd
        if sent is not None and sent.code == CloseCode.MESSAGE_TOO_BIG:
            self._metrics.rejected.labels('message').inc()
        if sent is not None and sent.code == CloseCode.POLICY_VIOLATION:
            self._metrics.rejected.labels('policy').inc()
        self._metrics.connections.set(len(self._inside))
        close = received if protocol.close_rcvd_then_sent else sent or received
        end = (
            connection.end
            or (close and f'{close.code} {close.reason}'.strip())
            or 'the connection was lost'
        )
        self._log(
            self._access,
            'access',
            f'connection of key {connection.scope or "none"} from {connection.address}: '
            f'{connection.requests} requests, {connection.received} bytes, '
            f'{time.monotonic() - connection.began:.1f} s, end: {shown(end, LINE)}',
            ACCESS_BURST,
        )

    def _reject(
        self, connection: MeteredConnection, why: str, status: HTTPStatus, text: str
    ) -> Response:
        self._metrics.rejected.labels(why).inc()
        return connection.respond(status, text)

    def _full(self, account: Account) -> str:
        """Return why the account can have no further connection; '' if it can."""
        if len(self._inside) >= self._most:
            return f'{self._most} clients are connected: retry later\n'
        if account.name and account.connections >= self._most_of_key:
            most = self._most_of_key
            return f'{most} clients have this key (max_connections_per_key): retry later\n'
        return ''

    def _state(self, connection: MeteredConnection, fault: str) -> Response:
        status = HTTPStatus.SERVICE_UNAVAILABLE if fault else HTTPStatus.OK
        return connection.respond(status, f'{fault or "OK"}\n')

    def _key(self, headers: list[str]) -> str | None:
        """Return the key of a request, '' at a server without keys, None for an unknown key."""
        keys = self.accounts.keys
        if not keys:
            return ''
        given = _raw(headers[0]) if len(headers) == 1 else b''
        # all keys are compared, so that the duration reveals nothing
        fits = [k for k in keys if hmac.compare_digest(given, f'{SCHEME}{k}'.encode())]
        return fits[0] if fits else None

    async def _slow_down(self, connection: MeteredConnection) -> None:
        """Delay the answer to a wrong key, more with each one from the same address."""
        site = _site(connection.address)
        bucket = self._wrong.setdefault(site, Bucket(WRONG_RATE, WRONG_BURST))
        self._wrong.move_to_end(site)
        if len(self._wrong) > ADDRESSES:
            self._wrong.popitem(last=False)
        self._log(self._say, 'key', f'{connection.address}: missing or unknown key', 8)
        await self._wait(connection, bucket.take())

    async def _wait(self, connection: MeteredConnection, seconds: float) -> None:
        if seconds:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(connection.wait_closed(), min(SLOWEST, seconds))

    def _log(self, log: Throttled, kind: str, line: str, burst: int) -> None:
        log(kind, line, burst=burst)
        asyncio.get_running_loop().call_later(WINDOW, log.flush)


def _raw(header: str) -> bytes:
    """Return the bytes of a header, which releases of websockets decode in two ways."""
    try:
        return header.encode('iso-8859-1')
    except UnicodeEncodeError:
        return header.encode('utf-8', 'surrogateescape')


def _site(address: str) -> str:
    """Return an IPv4 address, or the /64 network of an IPv6 address, which one client owns."""
    try:
        found = ipaddress.ip_address(address.partition('%')[0])
    except ValueError:
        return address
    if found.version == 4:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))
