"""Which connections are let in, and the pages that need no websocket.

Knows HTTP, keys, addresses and how many connections there are. Does not know what is said once a
client is in.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from http import HTTPStatus

from websockets.frames import CloseCode
from websockets.http11 import Request, Response

from embodied_kv.serving.websocket.accounts import Account, Accounts, Bucket
from embodied_kv.serving.websocket.config import MIB, ServerConfig
from embodied_kv.serving.websocket.heap import HeapTrim
from embodied_kv.serving.websocket.metrics import Metrics
from embodied_kv.serving.websocket.visitor import Visitor
from embodied_kv.text import LINE, shown
from embodied_kv.throttle import WINDOW, Throttled

SCHEME = 'Api-Key '
OPENING = 16  # connections that may be on their way in, in addition to those that are
WRONG_RATE, WRONG_BURST = 2.0, 8  # wrong keys of an address, per second and at once
SLOWEST = 5.0  # s that an answer to a wrong key, or to too many connections, waits at most
ADDRESSES = 1024  # whose wrong keys are remembered
ACCESS_BURST = 64  # lines of the access log within a window

log = logging.getLogger(__name__)
access = logging.getLogger('embodied_kv.serving.access')


class Gate:
    """fault: why nobody is served now, '' where all is well. ready: why no request is accepted.

    revoked: called with the names that are in use, once the file of keys has been read again.
    Raises ValueError, OSError: keys.
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
        self.accounts = Accounts(config.keys(), config.memory_mib * MIB)
        divide(self.accounts.names)
        self._most, self._most_of_key = config.connections, config.connections_per_key
        self._most_unopened = 2 * self._most + OPENING
        self._inside: set[Visitor] = set()
        self._sockets: set[asyncio.Transport] = set()
        self._unopened: dict[str, dict[Visitor, None]] = {}  # by address, the oldest first
        self._handshakes: dict[asyncio.Task, None] = {}  # of TLS, the oldest first
        self._wrong: OrderedDict[str, Bucket] = OrderedDict()  # by address
        self._say, self._access = Throttled(log.warning), Throttled(access.info)
        self.freed = HeapTrim(work).freed

    def connection(self, *arguments: object, **options: object) -> Visitor:
        """For each socket, whatever it says; those beyond what is sensible are closed unheard."""
        if self._config.certificate:
            self._begin_handshake(asyncio.current_task())
        return Visitor(self, *arguments, **options)

    async def admit(self, connection: Visitor, request: Request) -> Response | None:
        """None: come in. Else what it is told instead."""
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
                'send a key that is known: Authorization: Api-Key …\n',
            )
        account = self.accounts.of(self.accounts.keys.get(key, ''))
        if account.name and (wait := account.openings.take()):
            await self._wait(connection, wait)
            text = 'too many new connections with this key: come later\n'
            return self._reject(connection, 'connections', HTTPStatus.SERVICE_UNAVAILABLE, text)
        if path == '/metrics':
            return connection.respond(HTTPStatus.OK, self._metrics.page().decode())
        origins = request.headers.get_all('Origin')  # a page of this machine may drive no robot
        if other := [o for o in origins if o.lower() not in self._config.allowed_origins]:
            return self._reject(
                connection,
                'browser',
                HTTPStatus.FORBIDDEN,
                f'the Origin header must be one of the parameter origins (got {shown(other[0])}); '
                'a script that uses the package websocket-client passes suppress_origin=True, and '
                'the origin of a web page is added to origins\n',
            )
        if full := self._full(account):
            return self._reject(connection, 'connections', HTTPStatus.SERVICE_UNAVAILABLE, full)
        if connection.transport.is_closing():  # its end was counted before
            return self._reject(connection, 'sockets', HTTPStatus.SERVICE_UNAVAILABLE, '')
        connection.enter(account, key)
        self._opened(connection)
        self._inside.add(connection)
        self._metrics.connections.set(len(self._inside))
        asyncio.ensure_future(connection.wait_closed()).add_done_callback(
            lambda _: self._left(connection)
        )
        return None

    def state(self, path: str) -> str:
        """Return why the probe fails, '' where all is well. path: /healthz or /readyz."""
        return self._fault() or (self._ready() if path == '/readyz' else '')

    def reload(self) -> None:
        """Read the keys again; connections of keys that are gone are closed with 1008.

        The keys stay as they are where the file cannot be used, which the log says.
        """
        try:
            keys = self._config.keys()
        except (ValueError, OSError) as error:
            log.error('the keys were not reloaded: %s', shown(error, LINE))
            return
        if not keys:
            log.warning('no keys to reload: api_keys is empty')
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

    # ------------------------------------------------------------------ of its connections

    def came(self, connection: Visitor) -> None:
        """A socket is open. Where too many say nothing, the oldest of its address is closed."""
        self._sockets.add(connection.transport)
        site = _site(connection.address)
        self._unopened.setdefault(site, {})[connection] = None
        if len(self._unopened[site]) > self._most + OPENING:
            self._give_way(site)
        elif sum(map(len, self._unopened.values())) > self._most_unopened:
            self._give_way(max(self._unopened, key=lambda s: len(self._unopened[s])))

    def went(self, connection: Visitor) -> None:
        """Its socket is closed."""
        self._sockets.discard(connection.transport)
        self._opened(connection)

    @property
    def sockets(self) -> int:
        """That are open, whatever they are for."""
        return len(self._sockets)

    def abort(self) -> None:
        """All of them go, whatever their clients say or do not say."""
        for socket in list(self._sockets):
            socket.abort()
        for handshake in list(self._handshakes):
            handshake.cancel()

    def _begin_handshake(self, handshake: asyncio.Task) -> None:
        """Count it until its task ends. Of too many the oldest is closed: none has an address."""
        self._handshakes[handshake] = None
        handshake.add_done_callback(lambda task: self._handshakes.pop(task, None))
        if len(self._handshakes) > self._most_unopened:
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]
            self._metrics.rejected.labels('sockets').inc()
            oldest.cancel()

    def _opened(self, connection: Visitor) -> None:
        site = _site(connection.address)
        waiting = self._unopened.get(site, {})
        waiting.pop(connection, None)
        if not waiting:
            self._unopened.pop(site, None)

    def _give_way(self, site: str) -> None:
        oldest = next(iter(self._unopened[site]))
        self._opened(oldest)
        self._metrics.rejected.labels('sockets').inc()
        oldest.transport.abort()

    def _left(self, connection: Visitor) -> None:
        self._inside.discard(connection)
        protocol = connection.protocol
        sent, heard = protocol.close_sent, protocol.close_rcvd
        if sent is not None and sent.code == CloseCode.MESSAGE_TOO_BIG:
            self._metrics.rejected.labels('message').inc()
        if sent is not None and sent.code == CloseCode.POLICY_VIOLATION:
            self._metrics.rejected.labels('policy').inc()
        self._metrics.connections.set(len(self._inside))
        close = heard if protocol.close_rcvd_then_sent else sent or heard
        end = connection.end or (close and f'{close.code} {close.reason}'.strip()) or 'it was lost'
        self._log(
            self._access,
            'access',
            f'connection of key {connection.scope or "none"} from {connection.address}: '
            f'{connection.requests} requests, {connection.received} bytes, '
            f'{time.monotonic() - connection.began:.1f} s, end: {shown(end, LINE)}',
            ACCESS_BURST,
        )

    # ------------------------------------------------------------------ whether it is let in

    def _reject(self, connection: Visitor, why: str, status: HTTPStatus, text: str) -> Response:
        self._metrics.rejected.labels(why).inc()
        return connection.respond(status, text)

    def _full(self, account: Account) -> str:
        """Why there is no room for one more of that account; '' where there is."""
        if len(self._inside) >= self._most:
            return f'{self._most} clients are connected: come later\n'
        if account.name and account.connections >= self._most_of_key:
            return f'{self._most_of_key} clients have this key (connections_per_key): come later\n'
        return ''

    def _state(self, connection: Visitor, fault: str) -> Response:
        status = HTTPStatus.SERVICE_UNAVAILABLE if fault else HTTPStatus.OK
        return connection.respond(status, f'{fault or "OK"}\n')

    def _key(self, headers: list[str]) -> str | None:
        """Return the key that was sent, '' where there are none, None for one that is unknown."""
        keys = self.accounts.keys
        if not keys:
            return ''
        given = _raw(headers[0]) if len(headers) == 1 else b''
        # all are compared: time tells nothing
        fits = [k for k in keys if hmac.compare_digest(given, f'{SCHEME}{k}'.encode())]
        return fits[0] if fits else None

    async def _slow_down(self, connection: Visitor) -> None:
        """A wrong key is answered later, the more of them an address sends."""
        site = _site(connection.address)
        bucket = self._wrong.setdefault(site, Bucket(WRONG_RATE, WRONG_BURST))
        self._wrong.move_to_end(site)
        if len(self._wrong) > ADDRESSES:
            self._wrong.popitem(last=False)
        self._log(self._say, 'key', f'{connection.address}: no key, or one that is unknown', 8)
        await self._wait(connection, bucket.take())

    async def _wait(self, connection: Visitor, seconds: float) -> None:
        """As long as the client is there, and not too long."""
        if seconds:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(connection.wait_closed(), min(SLOWEST, seconds))

    def _log(self, said: Throttled, kind: str, line: str, burst: int) -> None:
        said(kind, line, burst=burst)
        asyncio.get_running_loop().call_later(WINDOW, said.flush)


def _raw(header: str) -> bytes:
    """Return the bytes that were sent, as releases of websockets decode them in two ways."""
    try:
        return header.encode('iso-8859-1')
    except UnicodeEncodeError:
        return header.encode('utf-8', 'surrogateescape')


def _site(address: str) -> str:
    """Return an address, of version 6 the network of a site: it has 2**64 of them."""
    try:
        found = ipaddress.ip_address(address.partition('%')[0])
    except ValueError:
        return address
    if found.version == 4:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))
