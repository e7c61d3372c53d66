"""A simulator as a process: requests on stdin, answers on stdout.

Runs in the simulator's environment; `remote.py` is the other end, in any environment. A message is
its length (4 bytes, big-endian) and msgpack, with arrays as openpi encodes them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import BinaryIO

from openpi_client import msgpack_numpy


def serve(begin: Callable[[], tuple[dict, Callable[[dict], dict]]]) -> None:
    """Answer requests until stdin ends.

    begin: returns the first message, and the function that answers a request.
    """
    out = os.fdopen(os.dup(1), 'wb')
    os.dup2(2, 1)  # other output of this process goes to stderr
    hello, answer = begin()
    write(out, hello)
    while (request := read(sys.stdin.buffer)) is not None:
        write(out, answer(request))


def read(stream: BinaryIO) -> dict | None:
    """Return the next message, or None at the end."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    return msgpack_numpy.unpackb(stream.read(int.from_bytes(head, 'big')))


def write(stream: BinaryIO, message: dict) -> None:
    """Write a message and flush it."""
    data = msgpack_numpy.packb(message)
    stream.write(len(data).to_bytes(4, 'big') + data)
    stream.flush()
