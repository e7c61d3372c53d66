"""Misbehaving clients, all of them in one process of their own, and good clients for comparison.

Knows what a client may send to a server. Does not know the inside of the server, nor the effect.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from multiprocessing.queues import Queue

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from embodied_kv.serving.websocket import codec

LONGEST = 3.0  # maximum time (s) that a client stalls
PATIENCE = 60.0  # s that a client waits for a reply
FLOOD = 50  # requests in a row
LARGE = 2000  # pixels of a side
TOO_LONG = 17 * 2**20  # bytes of a message
NAMES = 40  # session ids that the clients compete for
CUT_OFF = (  # errors of a client whose connection was closed, also those of asyncio
    *(OSError, EOFError, WebSocketException),
    *(asyncio.InvalidStateError, AttributeError, RuntimeError),
)


class Mob:
    """Misbehaving clients. port: of the server. request: of a good client."""

    def __init__(self, port: int, request: dict, seed: int) -> None:
        self._port, self._request = port, request
        self._message, self._random = codec.pack(request), random.Random(seed)
        picture = np.random.default_rng(seed).integers(0, 256, (LARGE, LARGE, 3), np.uint8)
        self._large = codec.pack(request | {'front': picture})
        self._lies = [
            codec.pack(lie)
            for lie in (
                request | {'observation.state': np.full(7, np.nan)},
                request | {'observation.state': np.zeros(14)},
                request | {'front': np.zeros((3, 3), np.uint8)},
                request | {'prompt': ' '},
                request | {'deadline_ms': -1.0},
                request | {'leftover': np.full((4, 7), np.inf)},
                request | {'endpoint': 'shell'},
                [1, 2],
                {str(n): {} for n in range(200)},
            )
        ]
        self._lies += [b'\xc1' * 100, b'', b'\x81' * 5000, self._message[:-9]]
        self._ways: list[Callable[[], Awaitable[None]]] = [
            self.come_and_go,
            self.leave,
            self.stall,
            self.hang,
            self.flood,
            self.magnify,
            self.lie,
            self.lie,
            self.overfill,
            self.keep,
        ]
        self.done: Counter[str] = Counter()

    async def run(self, clients: int, seconds: float) -> None:
        """Run so many clients at once; each does one thing after another."""
        end = time.monotonic() + seconds
        await asyncio.gather(*(self._one(end) for _ in range(clients)))

    async def _one(self, end: float) -> None:
        while time.monotonic() < end:
            way = self._random.choice(self._ways)
            try:
                await way()
                self.done[way.__name__] += 1
            except CUT_OFF:
                self.done['cut off'] += 1
            await asyncio.sleep(self._random.uniform(0.0, 0.5))

    def _open(self) -> connect:
        return connect(
            f'ws://127.0.0.1:{self._port}',
            compression=None,
            max_size=None,
            open_timeout=PATIENCE,
            ping_interval=None,
            close_timeout=1.0,
            proxy=None,
        )

    async def _ask(self, socket: ClientConnection, message: bytes) -> object:
        await socket.send(message)
        return await asyncio.wait_for(socket.recv(), PATIENCE)

    # ------------------------------------------------------------------ behaviours

    async def come_and_go(self) -> None:
        """Send some requests, and disconnect."""
        async with self._open() as socket:
            await socket.recv()
            for _ in range(self._random.randint(1, 3)):
                await self._ask(socket, self._message)

    async def leave(self) -> None:
        """Disconnect in the middle of a request, without a close frame."""
        socket = await self._open()
        await socket.send(self._message)
        await asyncio.sleep(self._random.uniform(0.0, 0.1))
        socket.transport.abort()

    async def stall(self) -> None:
        """Send a request, and read nothing."""
        socket = await self._open()
        socket.transport.pause_reading()
        await socket.send(self._message)
        await asyncio.sleep(self._random.uniform(0.0, LONGEST))
        socket.transport.abort()

    async def hang(self) -> None:
        """Open a socket, and send half a handshake."""
        _, writer = await asyncio.open_connection('127.0.0.1', self._port)
        writer.write(b'GET / HTTP/1.1\r\nHost: x\r\nUpgr')
        await asyncio.sleep(self._random.uniform(0.0, LONGEST))
        writer.transport.abort()

    async def flood(self) -> None:
        """Send more requests than the client reads replies to."""
        socket = await self._open()

        async def send() -> None:
            for _ in range(FLOOD):
                await socket.send(self._message)

        with suppress(asyncio.TimeoutError, TimeoutError):
            await asyncio.wait_for(send(), LONGEST)
        socket.transport.abort()

    async def magnify(self) -> None:
        """Send an image as large as a client may send; the server has to answer."""
        async with self._open() as socket:
            await socket.recv()
            reply = await self._ask(socket, self._large)
            if isinstance(reply, str):
                raise RuntimeError(reply)

    async def lie(self) -> None:
        """Send an invalid observation, or another robot's; the server closes the connection."""
        async with self._open() as socket:
            await socket.recv()
            await self._ask(socket, self._random.choice(self._lies))
            await asyncio.wait_for(socket.wait_closed(), PATIENCE)

    async def overfill(self) -> None:
        """Send a message that exceeds the maximum length."""
        socket = await self._open()
        await socket.recv()
        # The server closes it while it sends; asyncio may then fail on the closed transport.
        with suppress(ConnectionClosed, AttributeError):
            await socket.send(bytes(TOO_LONG))
        await asyncio.wait_for(socket.wait_closed(), PATIENCE)

    async def keep(self) -> None:
        """Take a capsule and ask a question, in a session that other clients may hold."""
        name = {'session_id': f'arm-{self._random.randrange(NAMES)}'}
        async with self._open() as socket:
            await socket.recv()
            await self._ask(socket, codec.pack(self._request | name))
            for verb in ('snapshot', 'restore', 'ask', 'reset'):
                wish = {'endpoint': verb, 'question': 'why?', 'max_tokens': 4} | name
                if verb == 'snapshot':
                    wish['name'] = f'c{self._random.randrange(10**9)}'
                await self._ask(socket, codec.pack(wish))


def riot(port: int, message: bytes, clients: int, seconds: float, seed: int, out: Queue) -> None:
    """Run the mob in its own process, and put how often each thing was done."""
    mob = Mob(port, codec.unpack(message), seed)
    asyncio.run(mob.run(clients, seconds))
    out.put(dict(mob.done))


def behave(
    port: int, message: bytes, clients: int, seconds: float, period: float, out: Queue
) -> None:
    """Run good clients in their own process; each sends a request once a period.

    Puts the s of the replies, and the faults.
    """
    out.put(asyncio.run(_behave(port, message, clients, seconds, period)))


async def _behave(
    port: int, message: bytes, clients: int, seconds: float, period: float
) -> tuple[list[float], list[str]]:
    latencies: list[float] = []
    faults: list[str] = []

    async def one(number: int) -> None:
        try:
            options = {'compression': None, 'max_size': None, 'open_timeout': PATIENCE}
            uri = f'ws://127.0.0.1:{port}'
            async with connect(uri, proxy=None, ping_interval=None, **options) as socket:
                await socket.recv()
                await asyncio.sleep(period * number / clients)
                end = time.monotonic() + seconds
                while (began := time.monotonic()) < end:
                    await socket.send(message)
                    reply = await asyncio.wait_for(socket.recv(), PATIENCE)
                    if isinstance(reply, str) or 'actions' not in codec.unpack(reply):
                        raise RuntimeError(str(reply)[:200])
                    latencies.append(time.monotonic() - began)
                    await asyncio.sleep(max(0.0, began + period - time.monotonic()))
        except Exception as error:  # a good client must not fail at all
            faults.append(repr(error))

    await asyncio.gather(*(one(number) for number in range(clients)))
    return latencies, faults
