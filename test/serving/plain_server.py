"""A policy server with openpi's plain protocol, without the extensions of this project."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import numpy as np
from server_cases import PATIENCE, packed, unpacked
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve

STALL, LEAVE = object(), object()  # instead of a reply: send nothing; close the connection


class PlainServer:
    """A server whose replies are the results of `answer` for each request.

    answer: returns a reply: a map, text for an error, bytes to send unchanged, a list of these,
    STALL or LEAVE. metadata: sent to each client. asked: all requests, of all connections.
    """

    def __init__(self, answer, metadata=None, port=0):
        self.answer, self.metadata, self.asked = answer, metadata or {}, []
        self.connections, self._open = 0, set()
        self._ended = threading.Event()
        self._server = serve(
            self._handle,
            '127.0.0.1',
            port,
            compression=None,
            max_size=None,
            open_timeout=PATIENCE,
            ping_interval=None,
            close_timeout=PATIENCE,
        )
        self.port = self._server.socket.getsockname()[1]
        self.address = f'ws://127.0.0.1:{self.port}'
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def _handle(self, client):
        self.connections += 1
        self._open.add(client)
        if self._ended.is_set():
            return
        try:
            client.send(packed(self.metadata))
            while True:
                request = unpacked(client.recv(PATIENCE))
                self.asked.append(request)
                reply = self.answer(request)
                if reply is STALL:
                    self._ended.wait(PATIENCE)
                    return
                if reply is LEAVE:
                    return
                for one in reply if isinstance(reply, list) else [reply]:
                    client.send(packed(one) if isinstance(one, dict) else one)
                if isinstance(reply, str):
                    client.close(1011)
                    return
        except (ConnectionClosed, TimeoutError):
            pass
        finally:
            self._open.discard(client)

    def stop(self):
        """End all connections at once, without a close frame, as if the process was killed."""
        self._ended.set()
        for connection in list(self._open):
            with suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)
        self._server.shutdown()
        self._thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def actions(columns, count=6, value=0.1):
    """Return a reply with equal actions [count, columns]."""
    return {
        'actions': np.full((count, columns), value, np.float32),
        'policy_timing': {'infer_ms': 1.0},
        'server_timing': {'infer_ms': 1.0},
    }
