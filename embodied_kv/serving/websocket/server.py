"""The policy server: openpi's websocket protocol on one port, served by a separate thread.

The event loop neither computes nor blocks: workers read images, and the engine's thread computes
chunks.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

from websockets.asyncio.server import Server, serve

from embodied_kv.fleet.profile import Profile
from embodied_kv.planning.config import MemoryParams, PlanningConfig
from embodied_kv.planning.planning import planner_folder
from embodied_kv.robots.contract import Contract
from embodied_kv.serving.engine_runner import EngineRunner
from embodied_kv.serving.memories import Memories, MemoryConfig
from embodied_kv.serving.ray_engine import RemoteEngine
from embodied_kv.serving.scheduling import SchedulingConfig
from embodied_kv.serving.websocket.admission import Admission
from embodied_kv.serving.websocket.config import MIB, ServerConfig
from embodied_kv.serving.websocket.extensions import Extensions
from embodied_kv.serving.websocket.handler import (
    GOODBYE_SECONDS,
    ConnectionHandler,
    ServerContext,
)
from embodied_kv.serving.websocket.health import HealthPort
from embodied_kv.serving.websocket.metered_connection import MeteredConnection
from embodied_kv.serving.websocket.metrics import Metrics
from embodied_kv.serving.websocket.observation_parser import ObservationParser
from embodied_kv.serving.websocket.sessions import Sessions
from embodied_kv.text import LINE, shown

PLANS = 16  # concurrent requests of memories; further ones wait
WORKERS = 2  # threads that read and resize images
OPENING_SECONDS = 10.0  # maximum of a handshake
PING_SECONDS = 20.0
ON_THE_WAY = 0.2  # s for a request that a client has already sent at a shutdown
DRAIN_TICK = 0.02  # s
BACKLOG = 128  # connections that the system queues until they are accepted

log = logging.getLogger(__name__)
quiet = logging.getLogger(f'{__name__}.websockets')  # invalid handshakes of port scanners
quiet.setLevel(logging.CRITICAL)


class PolicyServer(threading.Thread):
    """Serves sessions of a robot from `start` to `stop`; `port` is set by `start`.

    Raises ValueError and OSError for keys or a certificate that cannot be read, and for a port
    that is in use.
    """

    def __init__(
        self,
        config: ServerConfig,
        sessions: Sessions,
        contract: Contract,
        memories: Memories | None = None,
    ) -> None:
        super().__init__(name='policy server', daemon=True)
        self._config, self._contract, self.sessions = config, contract, sessions
        kv_budget = sessions.engine.kv.budget
        self._metrics = Metrics(sessions.values, self._values_of_keys, kv_budget)
        self._work = ThreadPoolExecutor(WORKERS, 'policy server, pictures')
        self._waits = ThreadPoolExecutor(1, 'policy server, capsules')
        self._plans = ThreadPoolExecutor(PLANS, 'policy server, memories')
        self._draining, self._certificate = threading.Event(), config.tls()
        self._admission = Admission(
            config,
            self._metrics,
            self._work,
            sessions.fault,
            lambda: 'the server shuts down' if self._draining.is_set() else '',
            sessions.divide,
        )
        self._probes = HealthPort(config.host, config.health_port, self._admission.state)
        self._context = ServerContext(
            config,
            sessions,
            ObservationParser(contract, sessions.engine.policy.fitted),
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
        self._ending: asyncio.Event  # of `_loop`

    def start(self) -> int:  # type: ignore[override]  # that of a thread returns nothing
        """Listen and return the port; requires started sessions, which have a fingerprint."""
        context, engine = self._context, self._context.sessions.engine
        extensions = Extensions.of(
            engine.policy.config,
            engine.config,
            context.parser.questions,
            self._contract,
            context.sessions.fingerprint,
            memory=context.memories is not None,
            resize=engine.policy.processing.resize.name,
        )
        context.metadata.update(extensions.metadata)
        super().start()
        self.port = self._listening.result()
        if self._config.health_port:
            self._probes.start()
        return self.port

    def reload(self) -> None:
        """Read keys and certificate again, from any thread; the outcome is logged."""
        with suppress(RuntimeError):  # the loop has ended
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._reload)

    def stop(self) -> None:
        """Answer the requests in flight, for at most `drain_timeout`, then close all connections.

        `/readyz` fails from the beginning. The thread ends.
        """
        with suppress(RuntimeError):  # the loop has ended
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._ending.set)
        if self.ident is not None:  # it was started
            self.join()
        if (memories := self._context.memories) is not None:
            memories.end_plans()
        for workers in (self._work, self._waits, self._plans):
            workers.shutdown(cancel_futures=True)
        self._probes.stop()

    def counts(self) -> dict[str, int]:
        """Return the tasks of the loop and the open sockets, while it listens. From any thread."""
        return {'tasks': len(asyncio.all_tasks(self._loop)), 'sockets': self._admission.sockets}

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
            self._handle,  # type: ignore[arg-type]  # takes a subclass
            config.host,
            config.port,
            compression=None,
            process_request=self._admission.admit,  # type: ignore[arg-type]  # takes a subclass
            create_connection=self._admission.connection,  # type: ignore[arg-type]  # a factory
            open_timeout=OPENING_SECONDS,
            ping_interval=PING_SECONDS,
            ping_timeout=config.client_timeout,
            close_timeout=GOODBYE_SECONDS,
            max_size=config.max_message_mib * MIB,
            max_queue=1,
            logger=quiet,
            backlog=BACKLOG,
            ssl=self._certificate and self._certificate.context,
            ssl_handshake_timeout=self._certificate and OPENING_SECONDS,
        )
        listening = await server  # `async with` would wait for the end of each connection
        self._listening.set_result(listening.sockets[0].getsockname()[1])
        await self._ending.wait()
        await self._drain(listening)
        await self._goodbye(listening)

    def _reload(self) -> None:
        self._admission.reload()
        if self._certificate is not None:
            try:
                self._certificate.reload()
            except (ValueError, OSError) as error:
                log.error('the certificate was not reloaded: %s', shown(error, LINE))
            else:
                log.info('certificate reloaded')

    def _values_of_keys(self) -> dict[str, dict[str, float]]:
        taken, kept = self._admission.accounts.values(), self._context.sessions.of_tenants()
        return {name: taken.get(name, {}) | kept.get(name, {}) for name in taken | kept}

    async def _handle(self, connection: MeteredConnection) -> None:
        await ConnectionHandler(self._context, connection).run()

    async def _drain(self, listening: Server) -> None:
        """Stop listening, and answer the requests that were already sent."""
        self._draining.set()
        listening.server.close()
        handlers = self._context.handlers
        if not handlers:
            return
        end = time.monotonic() + self._config.drain_timeout
        await asyncio.sleep(min(ON_THE_WAY, self._config.drain_timeout))
        idle = [handler for handler in handlers if not handler.busy]
        leaving = [asyncio.ensure_future(handler.leave()) for handler in idle]
        while time.monotonic() < end and any(handler.busy for handler in handlers):
            await asyncio.sleep(DRAIN_TICK)
        if leaving:
            await asyncio.wait(leaving, timeout=GOODBYE_SECONDS)

    async def _goodbye(self, listening: Server) -> None:
        """Close all connections, and abort those whose clients do not answer."""
        listening.close()
        closed = asyncio.ensure_future(listening.wait_closed())
        await asyncio.wait([closed], timeout=GOODBYE_SECONDS)
        self._admission.abort()
        await asyncio.wait([closed], timeout=GOODBYE_SECONDS)
        if not closed.done():
            log.warning('some connections did not close within %g s', 2 * GOODBYE_SECONDS)


@contextmanager
def open_server(
    runner: EngineRunner,
    profile: Profile,
    contract: Contract,
    config: ServerConfig,
    scheduling: SchedulingConfig,
    memory: tuple[MemoryConfig, MemoryParams, PlanningConfig],
    cloud: RemoteEngine | None,
    say: Callable[[str], object],
    fingerprint: str = '',
) -> Iterator[PolicyServer]:
    """Serve the engine of a runner in this context. Raises ValueError, OSError.

    Args:
        runner: The engine, which the caller owns.
        profile: The latency of its batches.
        contract: The contract of the robots.
        config: The settings of the server.
        scheduling: The order of service.
        memory: The settings of memories for robots without a model.
        cloud: As for `Sessions`.
        say: Receives the commit of a planner of the Hugging Face hub.
        fingerprint: As for `Sessions`.
    """
    with ExitStack() as closing:
        sessions = Sessions(
            runner.engine,
            runner.device,
            profile,
            config.max_connections,
            config.session_capsules_mib,
            config.all_capsules_mib,
            fingerprint,
            scheduling,
            cloud,
        )
        closing.callback(runner.deltas.unlisten, sessions.on_deltas)
        closing.callback(sessions.stop)
        memories, (kept, params, planning) = None, memory
        if kept.enabled:
            path = planner_folder(params.planner, contract.language.planner, say)
            rows, budget = kept.planner_rows, runner.kv_budget
            memories = Memories(path, params, planning, rows, runner.device, budget)
            closing.callback(memories.close)
        server = PolicyServer(config, sessions, contract, memories)
        closing.callback(server.stop)
        runner.deltas.listen(sessions.on_deltas)
        sessions.start()
        server.start()
        yield server
