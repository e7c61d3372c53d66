"""A client in a process of its own, as lightweight as a robot's: numpy, msgpack and a socket."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier

from websockets.sync.client import ClientConnection, connect

from embodied_kv.serving.websocket import codec

WARM = 3  # warm-up requests that do not count
PATIENCE = 600.0  # s


def ask(port: int, message: bytes, count: int, ready: Barrier, answers: Queue) -> None:
    """Put the s of each of `count` requests, or the reason of a failure.

    It begins when all clients are ready, and sends each request after the reply to the last.
    """
    try:
        answers.put(_asked(port, message, count, ready))
    except Exception as error:  # the receiver of the answers reports it
        ready.abort()
        answers.put(f'a client failed: {error!r}')


def _asked(port: int, message: bytes, count: int, ready: Barrier) -> list[float]:
    with connected(port) as socket:
        ready.wait(PATIENCE)
        return [once(socket, message) for _ in range(WARM + count)][WARM:]


@contextmanager
def connected(port: int) -> Iterator[ClientConnection]:
    """Yield a client's connection after the server's greeting."""
    options = {'compression': None, 'max_size': None, 'open_timeout': PATIENCE, 'proxy': None}
    with connect(f'ws://127.0.0.1:{port}', **options) as socket:
        socket.recv(PATIENCE)
        yield socket


def once(socket: ClientConnection, message: bytes) -> float:
    """Return the s from a request to its reply. Raises RuntimeError if it is refused."""
    began = time.monotonic()
    socket.send(message)
    if isinstance(reply := socket.recv(PATIENCE), str):
        raise RuntimeError(reply)
    codec.unpack(reply)
    return time.monotonic() - began
