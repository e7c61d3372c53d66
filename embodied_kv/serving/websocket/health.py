"""A separate port for probes of /healthz and /readyz, with its own thread, event loop and limits.

No client of the main port can delay a probe.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

SECONDS = 2.0  # maximum for a request
CONNECTIONS = 64  # at a time; beyond that the oldest is closed
LONGEST = 4096  # maximum bytes of a request


class HealthPort(threading.Thread):
    """The port; `state` returns why a probe of a path fails, '' for success."""

    def __init__(self, host: str, port: int, state: Callable[[str], str]) -> None:
        super().__init__(name='policy server, health', daemon=True)
        self._host, self._port, self._state = host, port, state
        self._listening: Future[int] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}  # the oldest first

    def start(self) -> int:  # type: ignore[override]  # that of a thread returns nothing
        """Listen, and return the port. Raises OSError if it is in use."""
        super().start()
        return self._listening.result()

    def stop(self) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._ending.set)
            self.join()

    def run(self) -> None:
        try:
            asyncio.run(self._listen())
        except OSError as error:
            self._listening.set_exception(error)

    async def _listen(self) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._answer, self._host, self._port, limit=LONGEST)
        self._listening.set_result(server.sockets[0].getsockname()[1])
        await self._ending.wait()
        server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = None
        if len(self._open) > CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        failures = (asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
        try:
            head = await asyncio.wait_for(reader.readuntil(b'\r\n\r\n'), SECONDS)
            writer.write(self._page(head))
            await asyncio.wait_for(writer.drain(), SECONDS)
        except (*failures, OSError):
            pass  # not a probe
        finally:
            self._open.pop(writer, None)
            writer.close()

    def _page(self, head: bytes) -> bytes:
        words = head.split(b'\r\n', 1)[0].split()
        path = words[1].partition(b'?')[0].decode('latin-1') if len(words) == 3 else ''
        if words[:1] != [b'GET'] or path not in ('/healthz', '/readyz'):
            status, text = '404 Not Found', 'GET /healthz or /readyz'
        elif fault := self._state(path):
            status, text = '503 Service Unavailable', fault
        else:
            status, text = '200 OK', 'OK'
        body = f'{text}\n'.encode()
        lines = [f'HTTP/1.1 {status}', 'Content-Type: text/plain; charset=utf-8']
        lines += [f'Content-Length: {len(body)}', 'Connection: close']
        return '\r\n'.join(lines).encode() + b'\r\n\r\n' + body
