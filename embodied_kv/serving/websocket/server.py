"""The public door: openpi's websocket protocol on one port, served by a thread of its own.

Knows the event loop and its limits. Does not know what is asked, nor how it is answered. On the
loop nothing computes and nothing waits: pictures are read by workers, chunks made by the engine's
thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from websockets.asyncio.server import Server, serve

from embodied_kv.robots.contract import Contract
from embodied_kv.serving.memories import Memories
from embodied_kv.serving.websocket.client import Client, Serving
from embodied_kv.serving.websocket.config import MIB, ServerConfig
from embodied_kv.serving.websocket.dialect import Dialect
from embodied_kv.serving.websocket.extensions import Extensions
from embodied_kv.serving.websocket.gate import Gate
from embodied_kv.serving.websocket.health import HealthPort
from embodied_kv.serving.websocket.hold import GOODBYE_SECONDS
from embodied_kv.serving.websocket.metrics import Metrics, merged
from embodied_kv.serving.websocket.sessions import Sessions
from embodied_kv.serving.websocket.visitor import Visitor
from embodied_kv.text import LINE, shown

PLANS = 16  # that memories make at a time; others wait
WORKERS = 2  # that read pictures, and resize them: neither loop nor engine waits for a large one
OPENING_SECONDS = 10.0  # of a handshake
PING_SECONDS = 20.0
ON_THE_WAY = 0.2  # s that a request takes from a client, when the server ends
DRAIN_TICK = 0.02  # s
BACKLOG = 128  # connections that the system keeps until they are accepted

log = logging.getLogger(__name__)
quiet = logging.getLogger(f'{__name__}.websockets')  # of what strangers try on a port
quiet.setLevel(logging.CRITICAL)


class PolicyServer(threading.Thread):
    """Serves sessions of a robot by this contract, from `start` to `stop`.

    Raises ValueError and OSError for keys or a certificate that cannot be read, and for a port
    that is taken.
    """

    def __init__(
        self,
        config: ServerConfig,
        sessions: Sessions,
        contract: Contract,
        memories: Memories | None = None,
    ) -> None:
        super().__init__(name='policy server', daemon=True)
        self._config, self._contract = config, contract
        self._metrics = Metrics(sessions.values, sessions.engine.kv.budget)
        self._work = ThreadPoolExecutor(WORKERS, 'policy server, pictures')
        self._waits = ThreadPoolExecutor(1, 'policy server, capsules')
        self._plans = ThreadPoolExecutor(PLANS, 'policy server, memories')
        self._draining, self._certificate = threading.Event(), config.tls()
        self._gate = Gate(
            config,
            self._metrics,
            self._work,
            sessions.fault,
            lambda: 'the server ends' if self._draining.is_set() else '',
            sessions.divide,
        )
        accounts = self._gate.accounts
        self._metrics.of_keys(lambda: merged(accounts.values(), sessions.of_tenants()))
        self._probes = HealthPort(config.host, config.health_port, self._gate.state)
        engine = sessions.engine
        dialect = Dialect(contract, engine.policy.fitted)
        self._serving = Serving(
            config,
            sessions,
            dialect,
            config.horizon or contract.clients.horizon or 0,
            dict(contract.clients.metadata),
            self._metrics,
            self._work,
            self._waits,
            self._plans,
            memories,
            self._draining,
        )
        self._listening: Future[int] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Event | None = None

    def start(self) -> int:
        """Listen and return the port; the sessions have started, and know their fingerprint."""
        sessions = self._serving.sessions
        policy, config = sessions.engine.policy.config, sessions.engine.config
        told = Extensions.of(
            policy,
            config,
            self._serving.dialect.questions,
            self._contract,
            sessions.fingerprint,
            refusals=True,
            executions=True,
            words=True,
            exports=True,
            memory=self._serving.memories is not None,
        )
        self._serving.metadata.update(told.metadata)
        super().start()
        port = self._listening.result()
        if self._config.health_port:
            self._probes.start()
        return port

    def reload(self) -> None:
        """Read keys and certificate again, from any thread; the log says what became of it."""
        with suppress(RuntimeError):  # the loop has ended
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._reload)

    def stop(self) -> None:
        """Answer what is in flight, for `drain_seconds` at most, then close all connections.

        The thread ends. `/readyz` fails from the beginning.
        """
        with suppress(RuntimeError):  # the loop has ended by itself
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._ending.set)
        self.join()
        for workers in (self._work, self._waits, self._plans):
            workers.shutdown(cancel_futures=True)
        self._probes.stop()

    def counts(self) -> dict[str, int]:
        """Tasks of its loop, and sockets; while it listens, from any thread."""
        return {'tasks': len(asyncio.all_tasks(self._loop)), 'sockets': self._gate.sockets}

    def run(self) -> None:
        try:
            asyncio.run(self._listen())
        except BaseException as error:
            if self._listening.done():
                log.critical('the policy server ended', exc_info=True)
            else:
                self._listening.set_exception(error)

    async def _listen(self) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        config = self._config
        server = serve(
            self._client,
            config.host,
            config.port,
            compression=None,
            process_request=self._gate.admit,
            create_connection=self._gate.connection,
            open_timeout=OPENING_SECONDS,
            ping_interval=PING_SECONDS,
            ping_timeout=config.silence_seconds,
            close_timeout=GOODBYE_SECONDS,
            max_size=config.message_mib * MIB,
            max_queue=1,
            logger=quiet,
            backlog=BACKLOG,
            ssl=self._certificate and self._certificate.context,
            ssl_handshake_timeout=self._certificate and OPENING_SECONDS,
        )
        listening = await server  # `async with` would wait for the end of every connection
        self._listening.set_result(listening.sockets[0].getsockname()[1])
        await self._ending.wait()
        await self._drain(listening)
        await self._goodbye(listening)

    def _reload(self) -> None:
        self._gate.reload()
        if self._certificate is not None:
            try:
                self._certificate.reload()
            except (ValueError, OSError) as error:
                log.error('the certificate was not reloaded: %s', shown(error, LINE))
            else:
                log.info('certificate reloaded')

    async def _client(self, connection: Visitor) -> None:
        await Client(self._serving, connection).run()

    async def _drain(self, listening: Server) -> None:
        """Accept no connection; answer the requests that were sent until now."""
        self._draining.set()
        listening.server.close()
        clients = self._serving.clients
        if not clients:
            return
        end = time.monotonic() + self._config.drain_seconds
        await asyncio.sleep(min(ON_THE_WAY, self._config.drain_seconds))
        idle = [client for client in clients if not client.busy]
        leaving = [asyncio.ensure_future(client.leave()) for client in idle]
        while time.monotonic() < end and any(client.busy for client in clients):
            await asyncio.sleep(DRAIN_TICK)
        if leaving:
            await asyncio.wait(leaving, timeout=GOODBYE_SECONDS)

    async def _goodbye(self, listening: Server) -> None:
        """Closes all connections, and aborts those whose clients do not answer."""
        listening.close()
        closed = asyncio.ensure_future(listening.wait_closed())
        await asyncio.wait([closed], timeout=GOODBYE_SECONDS)
        self._gate.abort()
        await asyncio.wait([closed], timeout=GOODBYE_SECONDS)
        if not closed.done():
            log.warning('some connections did not close within %g s', 2 * GOODBYE_SECONDS)
