"""Who is let in, and the two pages that need no websocket.

Knows HTTP, keys and how many there are. Does not know what is said once a client is in.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from http import HTTPStatus

from websockets.asyncio.server import ServerConnection
from websockets.frames import CloseCode
from websockets.http11 import Request, Response

from embodied_kv.serving.websocket.config import ServerConfig
from embodied_kv.serving.websocket.metrics import Metrics

SCHEME = 'Api-Key '
OPENING = 16  # connections that may be on their way in, beside those that are


class Gate:
    """fault: why nobody is served now; '' where all is well. Raises ValueError, OSError: keys."""

    def __init__(self, config: ServerConfig, metrics: Metrics, fault: Callable[[], str]) -> None:
        self._keys, self._metrics, self._fault = config.keys(), metrics, fault
        self._most, self._most_of_key = config.connections, config.connections_per_key
        self._inside: set[Visitor] = set()
        self._sockets: set[asyncio.Transport] = set()

    def connection(self, *arguments: object, **options: object) -> Visitor:
        """For each socket, whatever it says; those beyond what is sensible are closed unheard."""
        return Visitor(self, *arguments, **options)

    def admit(self, connection: Visitor, request: Request) -> Response | None:
        """None: come in. Else what it is told instead."""
        path = request.path.partition('?')[0]
        if path == '/healthz':
            return self._health(connection)
        scope = self._scope(request.headers.get_all('Authorization'))
        if scope is None:
            self._metrics.rejected.labels('key').inc()
            return connection.respond(
                HTTPStatus.UNAUTHORIZED, 'send a key that is known: Authorization: Api-Key …\n'
            )
        if path == '/metrics':
            return connection.respond(HTTPStatus.OK, self._metrics.page().decode())
        if request.headers.get_all('Origin'):  # a page of this machine may drive no robot of it
            self._metrics.rejected.labels('browser').inc()
            return connection.respond(HTTPStatus.FORBIDDEN, 'no page in a browser is let in\n')
        if full := self._full(scope):
            self._metrics.rejected.labels('connections').inc()
            return connection.respond(HTTPStatus.SERVICE_UNAVAILABLE, full)
        connection.scope = scope
        self._inside.add(connection)
        self._metrics.connections.set(len(self._inside))
        asyncio.ensure_future(connection.wait_closed()).add_done_callback(
            lambda _: self._left(connection)
        )
        return None

    def came(self, socket: asyncio.Transport) -> None:
        """It is kept where there is room for it."""
        self._sockets.add(socket)
        if len(self._sockets) > 2 * self._most + OPENING:
            self._metrics.rejected.labels('sockets').inc()
            socket.abort()

    def went(self, socket: asyncio.Transport) -> None:
        """Nobody is at its other end any more."""
        self._sockets.discard(socket)

    @property
    def sockets(self) -> int:
        """That are open, whatever they are for."""
        return len(self._sockets)

    def abort(self) -> None:
        """All of them go, whatever their clients say or do not say."""
        for socket in self._sockets:
            socket.abort()

    def _left(self, connection: Visitor) -> None:
        self._inside.discard(connection)
        said = connection.protocol.close_sent
        if said is not None and said.code == CloseCode.MESSAGE_TOO_BIG:
            self._metrics.rejected.labels('message').inc()
        self._metrics.connections.set(len(self._inside))

    def _full(self, scope: str) -> str:
        """Why there is no room for one more of that scope; '' where there is."""
        if len(self._inside) >= self._most:
            return f'{self._most} clients are connected: come later\n'
        if scope and sum(c.scope == scope for c in self._inside) >= self._most_of_key:
            return f'{self._most_of_key} clients have this key (connections_per_key): come later\n'
        return ''

    def _health(self, connection: Visitor) -> Response:
        fault = self._fault()
        status = HTTPStatus.SERVICE_UNAVAILABLE if fault else HTTPStatus.OK
        return connection.respond(status, f'{fault or "OK"}\n')

    def _scope(self, headers: list[str]) -> str | None:
        """Which key it is, from '1' on; '' where there are none, None for one that is unknown."""
        if not self._keys:
            return ''
        wanted = [f'{SCHEME}{key}'.encode() for key in self._keys]
        given = headers[0].encode() if len(headers) == 1 else b''
        fits = [hmac.compare_digest(given, key) for key in wanted]  # all: time tells nothing
        return str(fits.index(True) + 1) if any(fits) else None


class Visitor(ServerConnection):
    """A connection that is counted from its socket on. scope: whose the sessions are it may name.

    That is the number of its key among those that open; '' where everybody may come in.
    """

    scope = ''

    def __init__(self, gate: Gate, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)
        self._gate = gate

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._gate.came(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._gate.went(self.transport)
        super().connection_lost(exc)
