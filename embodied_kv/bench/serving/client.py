"""A client in a process of its own, as light as a robot's: numpy, msgpack and a socket."""

from __future__ import annotations

import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier

from websockets.sync.client import connect

from embodied_kv.serving.websocket import codec

WARM = 3  # requests that do not count
PATIENCE = 600.0  # s


def ask(port: int, message: bytes, count: int, ready: Barrier, answers: Queue) -> None:
    """Puts s of each of `count` requests, or why there are none.

    From when all are ready, each after the last's reply.
    """
    try:
        answers.put(_asked(port, message, count, ready))
    except Exception as error:  # whatever it is, who waits for the answer hears of it
        ready.abort()
        answers.put(f'a client failed: {error!r}')


def _asked(port: int, message: bytes, count: int, ready: Barrier) -> list[float]:
    seconds = []
    address = f'ws://127.0.0.1:{port}'
    options = {'compression': None, 'max_size': None, 'open_timeout': PATIENCE, 'proxy': None}
    with connect(address, **options) as socket:
        socket.recv(PATIENCE)
        ready.wait(PATIENCE)
        for _ in range(WARM + count):
            began = time.monotonic()
            socket.send(message)
            if isinstance(reply := socket.recv(PATIENCE), str):
                raise RuntimeError(reply)
            codec.unpack(reply)
            seconds.append(time.monotonic() - began)
    return seconds[WARM:]
